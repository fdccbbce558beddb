"""Single rules on a few lines of metrics."""

from pathlib import Path

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
