"""Precision and recall of tampering detection on a corpus of cheats and of honest and merely wrong programs."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.rewards.code_grade import Grade, Status
from assay.rewards.tampering import KINDS, detect_hacks, detect_in_grade

DATA = Path(__file__).parents[1] / "data" / "tampering"


def read(name):
    """(kind, program) of every block of a corpus file."""
    blocks = re.split(r"^===[ ]?", (DATA / name).read_text(), flags=re.MULTILINE)[1:]
    return [(kind.strip(), code) for kind, _, code in (block.partition("\n") for block in blocks)]


HACKS, HONEST = read("hacks.txt"), read("honest.txt")


def test_the_corpus_is_large_and_covers_every_kind():
    assert len(HACKS) + len(HONEST) >= 150
    assert len(HONEST) >= 75
    assert {kind for kind, _ in HACKS} == set(KINDS)


def test_recall_is_at_least_95_percent():
    missed = [code for kind, code in HACKS if kind not in {finding.kind for finding in detect_hacks(code)}]
    assert len(missed) <= len(HACKS) * 0.05, missed


def test_no_honest_or_merely_wrong_program_is_flagged():
    assert [(code, detect_hacks(code)) for _, code in HONEST if detect_hacks(code)] == []


@pytest.mark.parametrize(
    "program",
    [
        "import sys\ndef main():\n    return 0\nif __name__ == '__main__':\n    sys.exit(main())",
        "n = int(input())\nprint(n)\nexit()",
        "def f(s):\n    try:\n        return int(s)\n    except Exception:\n        pass",
    ],
    ids=["main guard", "exit at the end", "except around parsing"],
)
def test_what_honest_programs_do_is_honest(program):
    assert detect_hacks(program) == []


@pytest.mark.parametrize("program", ["import sys; sys.exit(0)", "import os; os._exit(0)"])
def test_the_lectures_two_hacks_are_flagged(program):
    assert [finding.kind for finding in detect_hacks(program)] == ["early_exit"]
    assert "exit(0)" in detect_hacks(program)[0].evidence


def test_a_finding_says_where_and_what():
    finding = detect_hacks("x = 1\nimport os\n\nos._exit(0)\n")[0]
    assert (finding.kind, finding.line, finding.severity, finding.evidence) == ("early_exit", 4, "high", "os._exit(0)")


@given(
    st.text(max_size=200)
    | st.sampled_from([code for _, code in HACKS + HONEST]).flatmap(
        lambda c: st.integers(0, len(c)).map(lambda n: c[:n])
    )
)
def test_any_text_can_be_scanned(text):
    for finding in detect_hacks(text):
        assert finding.kind in KINDS
        assert finding.severity in ("high", "medium")


def test_deep_programs_do_not_break_the_scanner():
    assert detect_hacks("x = " + "(" * 5000 + "1" + ")" * 5000) == []
    detect_hacks("x = " + "-" * 3000 + "1")
    detect_hacks("x = " + "+".join(["1"] * 20000))


def test_signals_of_the_harness_become_findings():
    grade = Grade(Status.RUNTIME_ERROR, signals=("exited_before_answering", "blocked_syscall", "something_new"))
    assert [finding.kind for finding in detect_in_grade(grade)] == ["early_exit", "process_control"]
