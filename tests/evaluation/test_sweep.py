"""Sweeps as real processes: every combination once, failures reported, interruption passed on, resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from assay.errors import InputError
from assay.evaluation.sweep import Sweep, as_yaml, read_sweep, run_sweep

# Stands in for `assay train`: records its overrides, counts its starts, and can be told to fail or to last.
TRAINER = """
import json, os, signal, sys, time
keys = dict(word.split("=", 1) for word in sys.argv[2:])
folder = os.path.join(keys["output_dir"], keys["name"])
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, "starts"), "a") as file:
    file.write("x")
if os.path.exists(os.path.join(folder, "done")):
    sys.exit(0)
with open(os.path.join(folder, "keys.json"), "w") as file:
    json.dump({**keys, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}, file)
if keys.get("mode") == "fail":
    print("assay: mode is fail; give another", file=sys.stderr)
    sys.exit(2)
if keys.get("mode") == "last":
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        open(os.path.join(folder, "checkpointed"), "w").close()
        sys.exit(130)
open(os.path.join(folder, "done"), "w").close()
"""


@pytest.fixture
def trainer(tmp_path):
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER)
    return (sys.executable, str(path))


def keys_of(folder, name):
    return json.loads((Path(folder) / name / "keys.json").read_text())


def test_grid_of_values_and_seeds():
    sweep = Sweep("r.yaml", "out", vary={"a.x": ["u", "v"], "a.y": [1, 2]}, seeds=(0, 1))
    names = [run.name for run in sweep.runs()]
    assert names[:4] == ["u-1-seed0", "u-2-seed0", "v-1-seed0", "v-2-seed0"]
    assert len(set(names)) == len(names) == 8
    assert sweep.runs()[6].overrides == ("a.x=v", "a.y=1", "seed=1", "name=v-1-seed1", "output_dir=out")


def test_bundles_set_keys_that_belong_together():
    sequence = {"name": "sequence", "objective.loss_type": "grpo", "objective.epsilon": 3e-4}
    sweep = Sweep("r.yaml", "out", settings=[{"name": "token"}, sequence], fixed={"train.steps": 5})
    assert [run.name for run in sweep.runs()] == ["token-seed0", "sequence-seed0"]
    assert sweep.runs()[1].overrides[:3] == ("train.steps=5", "objective.loss_type=grpo", "objective.epsilon=0.0003")


@pytest.mark.parametrize(
    "value", [3e-7, 1e22, -1.5, True, None, "a, b: c", "3e-7", [1, [2, "x"]], {"a": [None]}, "é", ""]
)
def test_overrides_read_back(value):
    assert yaml.safe_load(as_yaml(value)) == value
    assert "\n" not in as_yaml(value)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"seeds": (0, 0)}, "each once"),
        ({"vary": {"a.x": []}}, "no values"),
        ({"settings": [{"a.x": 1}]}, "name of its own"),
        ({"settings": [{"name": "a"}, {"name": "a"}]}, "name of its own"),
    ],
)
def test_impossible_sweeps_are_refused(options, match):
    with pytest.raises(InputError, match=match):
        Sweep("r.yaml", "out", **options)


def test_values_that_would_share_a_directory_are_refused():
    with pytest.raises(InputError, match="would be called"):
        Sweep("r.yaml", "out", vary={"a.x": ["u/v", "u:v"]}).runs()


@pytest.mark.parametrize("parallel", [1, 3])
def test_all_run_and_a_failure_stops_nobody(trainer, tmp_path, parallel):
    sweep = Sweep("r.yaml", str(tmp_path / "out"), vary={"mode": ["good", "fail", "fine"]}, seeds=(0, 1))
    ended = run_sweep(sweep, parallel, command=trainer)
    assert sorted(run.name for run in ended if run.status == 0) == [
        "fine-seed0",
        "fine-seed1",
        "good-seed0",
        "good-seed1",
    ]
    (failed, _) = [run for run in ended if run.status]
    assert (failed.status, failed.reason) == (2, "assay: mode is fail; give another")
    assert keys_of(tmp_path / "out", "good-seed1")["seed"] == "1"


@pytest.mark.parametrize(
    ("visible", "parallel", "first", "second"),
    [("3,7", 2, "3", "7"), ("0,1,2,3", 2, "0,2", "1,3"), ("5", 2, "5", "5"), ("3,7", 1, "3,7", "3,7"), ("", 2, "", "")],
)
def test_processes_that_run_at_once_have_their_own_gpus(
    trainer, tmp_path, monkeypatch, visible, parallel, first, second
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sweep = Sweep("r.yaml", str(tmp_path / "out"), vary={"mode": ["good", "fine"]})
    run_sweep(sweep, parallel, command=trainer)
    given = [keys_of(tmp_path / "out", name)["gpus"] for name in ("good-seed0", "fine-seed0")]
    assert given == [first, second]


def test_repeating_the_command_goes_on(trainer, tmp_path):
    sweep = Sweep("r.yaml", str(tmp_path / "out"), vary={"mode": ["good", "fine"]})
    run_sweep(sweep, command=trainer)
    run_sweep(Sweep("r.yaml", str(tmp_path / "out"), vary={"mode": ["good", "fine", "more"]}), command=trainer)
    starts = {path.parent.name: len(path.read_text()) for path in (tmp_path / "out").glob("*/starts")}
    assert starts == {"good-seed0": 2, "fine-seed0": 2, "more-seed0": 1}


@pytest.mark.parametrize("background", [False, True])  # a shell's background jobs begin with SIGINT ignored
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interruption_reaches_the_runs_once_and_leaves_none_behind(trainer, tmp_path, how, background):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("{}")
    out = tmp_path / "out"
    script = (
        "import functools, sys\nfrom assay.evaluation import sweep\nimport assay.cli.sweep as command\n"
        f"sweep.run_sweep = functools.partial(sweep.run_sweep, command={trainer!r})\n"
        "import typer\napp = typer.Typer()\napp.command()(command.sweep)\napp()\n"
    )
    if background:
        script = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + script
    arguments = [sys.executable, "-c", script, str(recipe), "mode=last", "--seeds", "2", "--parallel", "2"]
    with subprocess.Popen([*arguments, "--output-dir", str(out)], stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: len(list(out.glob("*/keys.json"))) == 2, process)
        time.sleep(0.3)
        process.send_signal(how)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "run the same command to go on" in errors
    assert len(list(out.glob("*/checkpointed"))) == 2


def wait_for(condition, process):
    for _ in range(600):
        if condition():
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    raise AssertionError("the sweep did not start its runs")


def test_sweep_file(tmp_path):
    (tmp_path / "r.yaml").write_text("train: {steps: 3}")
    file = tmp_path / "s.yaml"
    file.write_text("recipe: r.yaml\nvary: {objective.loss_type: [grpo, dapo]}\nseeds: 2\n")
    assert read_sweep(file)["recipe"] == str(tmp_path / "r.yaml")
    assert read_sweep(tmp_path / "r.yaml") is None
    file.write_text("recipe: r.yaml\nvaries: {}\n")
    with pytest.raises(InputError, match="unknown key varies"):
        read_sweep(file)
    file.write_text("recipe: missing.yaml\n")
    with pytest.raises(InputError, match=r"missing\.yaml does not exist"):
        read_sweep(file)


def test_dry_run_prints_commands(tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("{}")
    command = [sys.executable, "-m", "assay.cli.main", "sweep", str(recipe), "objective.loss_type=[grpo,dapo]"]
    done = subprocess.run(
        [*command, "train.steps=2", "--seeds", "2", "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"assay train {recipe} train.steps=2 objective.loss_type=grpo seed=0 name=grpo-seed0")
