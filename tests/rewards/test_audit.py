"""The audit finds planted weaknesses, and passes verifiers that have none; both commands as a user runs them."""

import json
import subprocess
import sys

import pytest

from assay.rewards import Verifier, load_reward
from assay.rewards.attacks import ATTACKS
from assay.rewards.audit import audit
from assay.rewards.verifier import correct, wrong

ROWS = [{"prompt": f"What is {i} + {3 * i}?", "gold": str(4 * i)} for i in range(11, 21)]


class LastNumber(Verifier):
    """Pays for the last number in the text."""

    def judge(self, text, gold, row):
        import re

        numbers = re.findall(r"\d+", text[-2000:])
        return correct() if numbers and numbers[-1] == str(gold) else wrong()

    def render_gold(self, gold, row):
        return f"The answer is {gold}"


class Anywhere(LastNumber):
    """Pays wherever gold occurs."""

    def judge(self, text, gold, row):
        return correct() if str(gold) in text else wrong()


class Always(LastNumber):
    def judge(self, text, gold, row):
        return correct()


class Never(LastNumber):
    def judge(self, text, gold, row):
        return wrong()


@pytest.mark.parametrize("name", ["math", "gsm8k", "exact_match", "numeric"])
def test_the_built_ins_pay_for_gold_and_nothing_else(name):
    report = audit(name, ROWS, attack_rows=4)
    assert report.ok, report.offences
    assert report.gold_paid == len(ROWS)
    assert set(report.tried) == set(ATTACKS)
    assert report.latency_p50 <= report.latency_p95 <= report.latency_p99


@pytest.mark.parametrize(
    ("verifier", "paid"),
    [
        (LastNumber, {"several", "negation", "last_number_bait", "only_in_reasoning"}),
        (Anywhere, {"several", "negation", "last_number_bait", "only_in_reasoning"}),
        (Always, set(ATTACKS)),
    ],
)
def test_planted_weaknesses_are_found(verifier, paid):
    report = audit(verifier(), ROWS, attack_rows=3)
    assert paid <= {name for name, count in report.paid.items() if count}
    assert not report.ok
    assert any(offence.kind in paid and offence.text for offence in report.offences)


def test_a_verifier_that_never_pays_fails_and_says_with_which_text():
    report = audit(Never(), ROWS)
    assert report.false_negatives == len(ROWS)
    assert not report.ok
    assert report.offences[0].text == "The answer is 44"


def test_users_functions_are_audited_as_well():
    def reward(completions, gold, **_):
        return [float(g in c) for c, g in zip(completions, gold)]

    assert audit(reward, ROWS, attack_rows=3).paid["last_number_bait"] > 0


def test_unreadable_gold_is_counted_apart():
    report = audit("math", [*ROWS, {"prompt": "?", "gold": ""}, {"prompt": "?", "gold": "N/A"}], attack_rows=1)
    assert (report.gold_paid, report.unreadable, report.false_negatives) == (len(ROWS), 2, 0)


def test_a_form_is_not_asked_to_tell_right_from_wrong():
    assert audit({"fn": "format", "options": {"style": "think_box"}}, ROWS, attack_rows=3).ok
    assert audit(
        "email_schema", [{"prompt": "m", "gold": {**MAIL, "customer_name": n}, "task": "email_json"} for n in "AB"]
    ).ok


def test_terms_that_no_answer_can_test_are_passed_over():
    for name, options in (("overlong", {"max_length": 9, "cache": 1}), ("repetition", {}), ("language", {})):
        report = audit({"fn": name, "options": options}, ROWS)
        assert report.ok
        assert not report.audited
    inside = audit({"fn": "cosine", "options": {"max_length": 10**9}}, ROWS, attack_rows=2)
    assert inside.audited
    assert inside.ok, inside.offences


MAIL = {
    "customer_name": "A", "order_id": "ORD-12345", "issue_type": "refund", "refund_requested": True,
    "sentiment": "neutral",
}  # fmt: skip


def test_gold_goes_through_the_tokenizer():
    class Lossy:
        """Drops backslashes, as a tokenizer without them would."""

        def encode(self, text, add_special_tokens):
            return [ord(c) for c in text if c != "\\"]

        def decode(self, ids, skip_special_tokens):
            return "".join(map(chr, ids))

    report = audit("math", ROWS, tokenizer=Lossy(), attack_rows=1)
    assert report.false_negatives == len(ROWS)
    assert "\\" not in report.offences[0].text


# The commands


def assay(*words, stdin=None):
    return subprocess.run(
        [sys.executable, "-m", "assay.cli.main", *words], capture_output=True, text=True, input=stdin, check=False
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [
        {"id": 1, "completion": "\\boxed{72}", "gold": "72"},
        {"id": 2, "completion": "72", "gold": "72"},
        {"id": 3, "completion": "\\boxed{\\sqrt{8}}", "gold": "2\\sqrt2"},
        {"id": 4, "completion": "\\boxed{71}", "gold": "72"},
        {"id": 5, "completion": "\\boxed{71}", "gold": ""},
        {"id": 6, "completion": [{"role": "assistant", "content": "\\boxed{9^{9^{9}}}"}], "gold": "3"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_grade_gives_rows_back_in_order(file):
    result = assay("grade", "--verifier", "math", str(file), "--workers", "3")
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["outcome"] for row in rows] == ["correct", "unparsable", "correct", "wrong", "error", "wrong"]
    assert [row["reward"] for row in rows] == [1.0, 0.0, 1.0, 0.0, None, 0.0]
    assert rows[0]["extracted"] == "72"
    assert rows[0]["span"] == [7, 9]
    assert "6 rows" in result.stderr
    assert "2 correct" in result.stderr
    again = assay("grade", "--verifier", "math", "-", stdin=file.read_text())
    assert [json.loads(line) for line in again.stdout.splitlines()] == rows


def test_grade_with_a_users_function_and_options(tmp_path, file):
    (tmp_path / "mine.py").write_text(
        "def reward(completions, gold, bonus=0.0, **_):\n"
        "    return [bonus + (g in str(c)) if g else None for c, g in zip(completions, gold)]\n"
    )
    result = assay("grade", "--verifier", f"{tmp_path / 'mine.py'}:reward", "-o", "bonus=0.5", str(file))
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["reward"] for row in rows] == [1.5, 1.5, 0.5, 0.5, None, 0.5]
    assert rows[4]["outcome"] == "not_applicable"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--verifier", "mth"], "did you mean 'math'"),
        (["--verifier", "math", "--gold", "answer"], "line 1: no column 'answer'"),
        (["--verifier", "math", "-o", "nonsense"], "use key=value"),
        (["--verifier", "math", "-o", "nonsense=1"], "unexpected keyword argument 'nonsense'"),
    ],
)
def test_grade_that_cannot_run(file, words, told):
    result = assay("grade", *words, str(file))
    assert result.returncode == 2
    assert told in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_grade_names_the_line_that_is_no_json(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"completion": "\\\\boxed{1}", "gold": "1"}\nnot json\n')
    result = assay("grade", "--verifier", "math", str(path))
    assert result.returncode == 2
    assert "line 2: not JSON" in result.stderr


def test_audit_command(tmp_path, file):
    rows = tmp_path / "gold.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    good = assay("audit", "--verifier", "math", str(rows), "--json", "--attack-rows", "2")
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["ok"] is True
    bad = assay("audit", "--verifier", "regex", "-o", r"pattern=(\d+)\D*$", str(rows), "--attack-rows", "2")
    assert bad.returncode == 1
    assert "last_number_bait" in bad.stdout
    assert "pays for" in bad.stderr
    assert assay("audit", "--verifier", "math", str(tmp_path / "none.jsonl")).returncode == 2


def test_names_in_the_table_all_load():
    from assay.rewards import BUILTINS
    from assay.rewards.registry import resolve

    for name in BUILTINS:
        assert callable(resolve(name)), name
    assert load_reward("math").gives_verdicts
    load_reward("math").fn.close()
