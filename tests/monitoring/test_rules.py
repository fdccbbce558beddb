"""Single rules on a few lines of metrics."""

from pathlib import Path

import pytest

from assay.monitoring.doctor import diagnose
from assay.monitoring.history import from_lines
from assay.monitoring.sources import Run


def test_a_parser_that_reads_nothing_is_seen_behind_cut_off_answers():
    """Four in five answers are cut off, and no answer at all is found: also not in those that are whole."""

    def diagnosed(unparsable):
        line = {
            "reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "groups/count": 8.0,
            "completions/count": 64.0, "completions/clipped_ratio": 0.8, "verifier/unparsable_frac": unparsable,
        }  # fmt: skip
        history = from_lines([{"step": step, **line} for step in range(1, 61)])
        return {item.id for item in diagnose(Run(path=Path("x.jsonl"), history=history)).findings}

    assert "RW01" in diagnosed(1.0)
    assert "RW01" not in diagnosed(0.8)


@pytest.mark.parametrize(
    ("facts", "judged"),
    [({"num_generations": 8}, True), ({"num_generations": 1}, False), ({"num_generations": 8, "screen": 4}, False)],
    ids=str,
)
def test_groups_of_one_and_groups_that_were_cut_short_are_not_called_uniform(facts, judged):
    line = {
        "reward": 0.5, "accuracy": 0.5, "frac_reward_zero_std": 1.0, "groups/count": 64.0,
        "groups/frac_all_wrong": 0.5, "groups/frac_all_correct": 0.5, "groups/frac_mixed": 0.0,
    }  # fmt: skip
    history = from_lines([{"step": step, **line} for step in range(1, 61)])
    diagnosis = diagnose(Run(path=Path("x.jsonl"), history=history, facts=facts))
    group_rules = {"GR01", "GR02", "GR03", "GR04"}
    found = {item.id for item in diagnosis.findings} & group_rules
    unchecked = {item.id for item in diagnosis.not_checkable} & group_rules
    assert (bool(found), unchecked) == ((True, set()) if judged else (False, group_rules))
