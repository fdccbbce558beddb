"""Rollouts ahead of the trainer over a real server: the bound holds, and versions change inside completions."""

import pyarrow.parquet as pq
import pytest
from vllm_helpers import serving

import assay

pytestmark = pytest.mark.vllm
ROWS = [{"question": f"Say {'x' * n}.", "answer": "x"} for n in range(1, 17)]
STEPS = 6


def letters(completions, **kwargs):
    return [len(set(completion[-1]["content"])) / 24 for completion in completions]


def rows_of(directory):
    rows = []
    for path in sorted((directory / "rollouts").glob("*.parquet")):
        rows += pq.read_table(path, columns=["step", "draw", "prompt_key", "policy_versions", "num_tokens"]).to_pylist()
    return rows


@pytest.mark.parametrize("lora", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["adapters", "full"])
def test_the_bound_holds_and_versions_are_right(folder_of, tmp_path, lora):
    folder = folder_of("tied")

    def train(url, name, **keys):
        return assay.train(
            model=str(folder), dtype="float32", lora=lora, lora_rank=4, dataset=ROWS, name=name,
            rewards=[letters], preset="grpo", output_dir=str(tmp_path), num_generations=4, max_completion_length=40,
            prompts_per_step=2, steps=STEPS, learning_rate=1e-3, console="quiet", heldout_size=2, policy="uniform",
            rollout={"engine": "vllm-server", "vllm": {"urls": [url]}} | keys,
        )  # fmt: skip

    with serving(folder, tmp_path, lora=lora) as [(url, _)]:
        ahead = train(url, "ahead", max_staleness=2)
        synchronous = train(url, "synchronous")
        plain = train(url, "plain", engine="transformers")
    rows = rows_of(ahead.directory)
    assert [row["draw"] for row in rows][::4] == list(range(2 * STEPS))
    for row in rows:
        versions = [span["version"] for span in row["policy_versions"]]
        starts = [span["start"] for span in row["policy_versions"]]
        assert row["step"] - 1 - min(versions) <= 2
        assert versions == sorted(set(versions))
        assert starts[0] == 0
        assert starts == sorted(set(starts))
        assert max(starts) < row["num_tokens"]
        assert max(versions) < row["step"]
    lines = [line for line in ahead.metrics() if "staleness/max" in line]
    assert max(line["staleness/max"] for line in lines) > 0, "nothing was written ahead"
    assert any(line["grad_norm"] > 0 for line in lines)
    kept = rows_of(synchronous.directory)
    assert all([span["version"] for span in row["policy_versions"]] == [row["step"] - 1] for row in kept)
    assert [row["prompt_key"] for row in kept] == [row["prompt_key"] for row in rows_of(plain.directory)]
