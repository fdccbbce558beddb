"""The math verifier against reported failures of existing verifiers, hand-written cases, and properties."""

import gzip
import json
import pickle
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.records import Outcome
from assay.rewards.answers.extract import NoAnswer, find_answer
from assay.rewards.answers.normalise import normalise
from assay.rewards.answers.numbers import read_number
from assay.rewards.gsm8k import gsm8k_gold
from assay.rewards.mathematics import Gsm8k, Math

DATA = Path(__file__).parents[1] / "data"
NEVER_PAID = {"injection", "hazard", "extract_nomarker", "think_block", "set_tuple", "text_answer"}


@pytest.fixture(scope="module")
def math():
    verifier = Math()
    yield verifier
    verifier.close()


def cases():
    with gzip.open(DATA / "math_cases.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def more_cases():
    for line in (DATA / "math_more.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            sign, rest = line.split(" | ", 1)
            completion, gold = rest.rsplit(" | ", 1)
            yield completion.replace("\\n#", "\n#"), gold, sign == "="


def test_reported_failures_of_other_verifiers(math):
    wrong, paid = Counter(), []
    firm = [case for case in cases() if not case["debatable"]]
    for case in firm:
        judged = math.judge(case["completion"], case["gold"], {})
        if (judged.reward == 1.0) != case["expected"]:
            wrong[case["kind"]] += 1
            if not case["expected"]:
                paid.append(case["id"])
    assert paid == []
    assert sum(wrong.values()) <= 0.01 * len(firm), wrong


SAME = [
    ("0.35", "35\\%", "\\frac{35}{100}"), ("2x+3", "y = 2x+3"), ("30^\\circ", "\\frac{\\pi}{6}"),
    ("36", "\\$36"), ("4^{1/3}", "\\sqrt[3]{4}"), ("5 \\text{ cm}", "x=5"),
    ("\\emptyset", "\\text{no real solutions}"),
]  # fmt: skip


def test_golds_equal_themselves_and_no_other(math):
    """A hundred golds of every kind against one another: 10,000 chances to pay for the wrong thing."""
    golds = (DATA / "math_golds.txt").read_text().splitlines()
    same = {frozenset((a, b)) for group in SAME for a in group for b in group if a != b}
    for answer in golds:
        for gold in golds:
            judged = math.judge(f"\\boxed{{{answer}}}", gold, {})
            assert judged.outcome is not Outcome.ERROR, (answer, gold, judged.detail)
            assert (judged.reward == 1.0) == (answer == gold or frozenset((answer, gold)) in same), (
                answer,
                gold,
                judged,
            )


def test_unreadable_gold_is_never_a_reward_and_never_a_zero(math):
    for gold in ("", "   ", None, "N/A", "\\boxed{}", "nan"):
        judged = math.judge("\\boxed{5}", gold, {})
        assert judged.outcome is Outcome.ERROR
        assert judged.reward is None
        assert judged.detail.startswith("gold unreadable")


@pytest.mark.parametrize(("completion", "gold", "right"), list(more_cases()))
def test_hand_written(math, completion, gold, right):
    judged = math.judge(completion, gold, {})
    assert (judged.outcome is Outcome.CORRECT) == right, judged
    assert judged.reward == (1.0 if right else 0.0)


@pytest.mark.parametrize(
    "bomb",
    [
        "9**9**9", "9^{9^{9}}", "10^{10^{10}}", "(10^8)!", "\\binom{10^9}{5\\cdot 10^8}", "((9^9)^9)^9^9",
        "\\prod_{k=1}^{10^7} k", "\\frac{" * 900 + "1" + "}{2}" * 900, "{" * 5000 + "1" + "}" * 5000,
        "\\sqrt{" * 30 + "x" + "}" * 30, "1" * 200_000, "\\left(" * 2000, "(x+y+z+w)^{60}+(x+y+z)^{61}",
        "\\sin(\\sin(\\sin(\\cos(\\tan(10^{99999})))))",
        "x^{99999}+x^{99998}", "99999^{99999}", "\\text{" * 3000 + "}" * 3000,
    ],
)  # fmt: skip
def test_bombs_return_an_outcome(math, bomb):
    judged = math.judge(f"\\boxed{{{bomb}}}", "3x+1", {})
    assert judged.outcome in (Outcome.WRONG, Outcome.UNPARSABLE)
    assert math.judge("\\boxed{1+3x}", "3x+1", {}).outcome is Outcome.CORRECT


def test_the_limit_of_computer_algebra_is_the_completions_fault():
    verifier = Math(symbolic_s=0.3)
    try:
        judged = verifier.judge("\\boxed{99999^{99999}+99998^{99999}+x-x}", "3x+\\sqrt{2}", {})
        slow = verifier.judge("\\boxed{" + "+".join(f"\\sin({i}^{{{i}}}x)" for i in range(2, 40)) + "}", "3x+1", {})
        assert judged.outcome in (Outcome.WRONG, Outcome.UNPARSABLE)
        assert slow.outcome is Outcome.WRONG
        assert "CPU seconds" in slow.detail
        assert slow.reward == 0.0
        assert verifier.judge("\\boxed{2\\sqrt2}", "\\sqrt8", {}).outcome is not Outcome.ERROR
    finally:
        verifier.close()


def test_nothing_in_a_box_is_executed(math, tmp_path):
    target = tmp_path / "touched"
    for payload in (
        f'__import__("pathlib").Path("{target}").touch()',
        f'1 if open("{target}","w") else 2\\pi',
        f'[[open("{target}","w"),1]]',
        f"\\input{{{target}}}",
        f"\\write18{{touch {target}}}",
    ):
        for gold in ("42", "x+1", "\\begin{pmatrix}1\\end{pmatrix}"):
            assert math.judge(f"\\boxed{{{payload}}}", gold, {}).reward == 0.0
            math.judge(f"\\boxed{{{payload}}}", payload + " ", {})
    assert not target.exists()


# Extraction


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200), st.integers(0, 10**6))
def test_the_span_is_where_the_answer_stands(prefix, number):
    text = prefix + f"\n\nThe result: \\boxed{{ {number} }}"
    try:
        found = find_answer(text)
    except NoAnswer:
        assert (
            any(word in prefix.lower() for word in ("think", "answer", "boxed", "not", "n't", "never")) or "{" in prefix
        )
        return
    if found.marker == "box":
        start, end = found.span
        assert text[start:end] == str(number) == found.text


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                ["\\boxed{", "}", "{", "####", "\n", "<think>", "</think>", "<answer>", "</answer>", "$", "\\frac",
                 "^", "_", "\\pm", "\\{", "\\}", "(", "]", ",", "=", "\\cup", "or", "5", "%",
                 "\\text{", "\\left", "\\right", "·", "½", "\\\\"]
            ),
            st.text(max_size=4),
        ),
        max_size=25,
    ),
    st.sampled_from(["5", "x+1", "(1,2)", "[0,1)", "\\frac{1}{2}", "yes", "B", "x=5", "1,2,3",
                     "52_8", "3:30", "{", "\\frac{"]),
)  # fmt: skip
def test_any_text_gets_an_outcome(math, pieces, gold):
    text = "".join(pieces)
    for completion in (text, f"\\boxed{{{text}}}", f"#### {text}"):
        judged = math.judge(completion, gold, {})
        assert judged.outcome in (Outcome.CORRECT, Outcome.WRONG, Outcome.UNPARSABLE) or gold in ("{", "\\frac{")
        assert judged.reward in (0.0, 1.0, None)
        if judged.span is not None:
            assert 0 <= judged.span[0] <= judged.span[1] <= len(completion)


# Numbers


@settings(max_examples=200, deadline=None)
@given(st.fractions(max_denominator=10**4), st.sampled_from(["frac", "slash", "neg", "mixed"]))
def test_a_fraction_reads_as_itself_however_written(value, form):
    numerator, denominator = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    whole, rest = divmod(numerator, denominator)
    text = {
        "frac": f"{sign}\\frac{{{numerator}}}{{{denominator}}}",
        "slash": f"{sign}{numerator}/{denominator}",
        "neg": f"\\dfrac{{{sign}{numerator}}}{{{denominator}}}",
        "mixed": f"{sign}{whole}\\tfrac{{{rest}}}{{{denominator}}}",
    }[form]
    assert read_number(normalise(text)).value == value


@settings(max_examples=200, deadline=None)
@given(st.decimals(-(10**9), 10**9, places=3, allow_nan=False))
def test_a_decimal_reads_as_itself_with_grouping_currency_and_padding(value):
    exact = Fraction(value)
    for text in (
        f"{value}",
        f"{value:,}",
        f"\\${value:,}" if value >= 0 else f"-\\${-value:,}",
        f"{value}00",
        f" {value} .",
    ):
        assert read_number(normalise(text)).value == exact, text


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(-(10**30), 10**30), st.integers(1, 10**6))
def test_neighbours_are_never_equal(math, number, offset):
    assert math.judge(f"\\boxed{{{number}}}", str(number), {}).reward == 1.0
    assert math.judge(f"\\boxed{{{number:,}}}", str(number), {}).reward == 1.0
    assert math.judge(f"\\boxed{{{number + offset}}}", str(number), {}).reward == 0.0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(-99, 99), min_size=2, max_size=6, unique=True), st.randoms())
def test_sets_ignore_order_and_tuples_do_not(math, items, random):
    shuffled = items[:]
    random.shuffle(shuffled)
    a, b = ", ".join(map(str, items)), ", ".join(map(str, shuffled))
    assert math.judge(f"\\boxed{{\\{{{a}\\}}}}", f"\\{{{b}\\}}", {}).reward == 1.0
    assert math.judge(f"\\boxed{{({a})}}", f"({b})", {}).reward == float(items == shuffled)
    assert math.judge(f"\\boxed{{\\{{{a}, 100\\}}}}", f"\\{{{b}\\}}", {}).reward == 0.0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30))
def test_expanding_a_product_keeps_it_equal(math, a, b, c):
    gold = f"{a}x^2+{b * 2}x+{c}"
    assert math.judge(f"\\boxed{{x({a}x+{b * 2})+{c}}}", gold, {}).reward == 1.0
    assert math.judge(f"\\boxed{{x({a}x+{b * 2})+{c + 1}}}", gold, {}).reward == 0.0


# GSM8K

RATIONALE = "He packs 36/2 = <<36/2=18>>18 crates.\nThat makes 36+18 = <<36+18=54>>54.\n#### 1,054"


def test_gsm8k_gold_is_what_follows_the_marker():
    assert gsm8k_gold(RATIONALE) == "1054"
    assert gsm8k_gold("72") == "72"
    assert gsm8k_gold(72) == "72"
    for text in ("He has 5 apples.\nSo 5.", "1+1 = <<1+1=2>>2", "work\n####  "):
        with pytest.raises(ValueError, match="reference answer"):
            gsm8k_gold(text)


def test_a_raw_rationale_as_gold_is_read_or_refused_but_never_zero_on_every_row():
    with_marker, without = RATIONALE, RATIONALE.split("####")[0]
    prose = "He packs eighteen crates on Sunday and twice as many on Monday, so that both days make 54 crates in all."
    for verifier in (Math(), Gsm8k()):
        assert verifier.judge("\\boxed{1054}", with_marker, {}).reward == 1.0
        assert verifier.judge("So.\n#### 1,054", with_marker, {}).reward == 1.0
        assert verifier.judge("So.\n#### 54", with_marker, {}).reward == 0.0
        refused = verifier.judge("#### 54", without, {})
        assert refused.outcome is Outcome.ERROR
        assert refused.detail.startswith("gold unreadable")
        assert verifier.judge("#### 54", prose, {}).detail.startswith("gold unreadable")
        assert verifier.judge("\\boxed{all reals but 0}", "all reals but 0", {}).reward == 1.0
        verifier.close()


def test_under_trls_contract_and_pickled():
    verifier = pickle.loads(pickle.dumps(Math(gold_column="solution")))
    assert verifier(completions=["\\boxed{2}", "2"], solution=["2", "2"], prompts=["q", "q"]) == [1.0, 0.0]
    assert verifier(completions=[[{"role": "assistant", "content": "\\boxed{3}"}]], solution=["3"]) == [1.0]
    verifier.close()
