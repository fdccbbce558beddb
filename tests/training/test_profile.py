"""`assay train --profile`: a trace of the steps that were asked for, and phases that add up to the step."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from assay.cli.main import app

RECIPE = """
name: profiled
preset: grpo
model: {{path: {model}, lora_rank: 2, dtype: float32, prefix_sharing: true}}
data: {{source: file, path: {data}, heldout_size: 2}}
rewards: {{functions: [{{fn: exact_match}}]}}
rollout: {{num_generations: 2, max_completion_length: 6}}
train: {{steps: 4, prompts_per_step: 2}}
output_dir: {runs}
"""


@pytest.fixture
def recipe(tiny_folder, tmp_path):
    rows = [{"prompt": f"Say {word}.", "answer": word} for word in ("one", "two", "three", "four", "five", "six")]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(model=tiny_folder("llama"), data=data, runs=tmp_path / "runs"))
    return path


def test_a_trace_of_two_steps_and_phases_that_add_up(recipe, tmp_path):
    words = ["train", str(recipe), "--quiet", "--json", "--profile", "2"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    run = tmp_path / "runs" / "profiled"
    trace = json.loads(gzip.decompress((run / "profile" / "trace.json.gz").read_bytes()))
    names = [event.get("name") for event in trace["traceEvents"]]
    assert any(str(name).startswith("aten::") for name in names)
    assert "aten::mm" in (run / "profile" / "operations.txt").read_text()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "step_time" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    for line in steps[1:]:
        phases = {name: value for name, value in line.items() if name.startswith("time/") and name != "time/unix"}
        inside = sum(value for name, value in phases.items() if name not in ("time/evaluate", "time/save"))
        assert inside == pytest.approx(line["step_time"], rel=1e-6, abs=1e-6)
