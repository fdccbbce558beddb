"""The monitor as the loop uses it: files, resume, console."""

import io
import json

import pytest
from rich.console import Console

from assay.errors import InputError
from assay.monitoring import Monitor, MonitorOptions, NullMonitor, read_metrics, rollout_metrics
from assay.monitoring.console import PlainConsole, View, choose_console, render, sparkline
from assay.monitoring.plots import before_after_table, learning_curve, smooth, terminal_curve


def drive(monitor, steps, make):
    monitor.start()
    for step in steps:
        monitor.phase("generate", 1)
        groups = [make()]
        monitor.advance(1)
        monitor.phase("train")
        monitor.step(step, rollout_metrics(groups), groups)
    monitor.finish()


@pytest.fixture
def make(completion, group):
    return lambda: group([completion(4, 1.0, True), completion(6, 0.0, False)])


def test_a_run_leaves_metrics_and_rollouts_from_the_first_step(tmp_path, make):
    monitor = Monitor(tmp_path / "run", MonitorOptions(console="quiet"), 3)
    monitor.heldout(0, {"accuracy": 0.25})
    drive(monitor, (1, 2, 3), make)
    history = read_metrics(tmp_path / "run")
    assert history.steps.tolist() == [0, 1, 2, 3]
    assert history.series("heldout/accuracy")[1].tolist() == [0.25]
    # Per step: two completions of a three-token prompt and ten written tokens.
    assert history.series("num_tokens")[1].tolist() == [16.0, 32.0, 48.0]
    for name in ("time/generate", "time/train", "step_time", "tokens_per_second", "memory/peak_rss_gib"):
        assert name in history
    assert monitor.store.steps() == [1, 2, 3]


def deterministic(path):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    volatile = ("time/", "memory/", "step_time", "tokens_per_second")
    return [{name: value for name, value in line.items() if not name.startswith(volatile)} for line in lines]


def test_resuming_writes_what_the_uninterrupted_run_writes(tmp_path, make):
    drive(Monitor(tmp_path / "whole", MonitorOptions(console="quiet"), 5), range(1, 6), make)
    first = Monitor(tmp_path / "cut", MonitorOptions(console="quiet"), 5)
    drive(first, (1, 2), make)
    state = first.state_dict()
    drive(first, (3, 4), make)
    second = Monitor(tmp_path / "cut", MonitorOptions(console="quiet"), 5)
    second.load_state_dict(json.loads(json.dumps(state)))
    second.rewind(2)
    drive(second, (3, 4, 5), make)
    assert deterministic(tmp_path / "cut") == deterministic(tmp_path / "whole")
    for step in range(1, 6):
        assert second.store.read(step) == first.store.read(step)


def test_every_nth_rollout_may_be_kept(tmp_path, make):
    monitor = Monitor(tmp_path, MonitorOptions(console="quiet", rollouts_every=2), 4)
    drive(monitor, (1, 2, 3, 4), make)
    assert monitor.store.steps() == [2, 4]


def test_every_nth_rollout_is_counted_in_updates_where_a_round_has_several(tmp_path, make):
    monitor = Monitor(tmp_path, MonitorOptions(console="quiet", rollouts_every=10), 40)
    drive(monitor, range(1, 41, 8), make)  # groups come with steps 1, 9, 17, 25 and 33
    assert monitor.store.steps() == [17, 25, 33]


def test_a_pipe_gets_a_line_a_step(tmp_path, make):
    stream = io.StringIO()
    monitor = Monitor(tmp_path, MonitorOptions(), 2, console=PlainConsole(stream))
    drive(monitor, (1, 2), make)
    monitor.heldout(2, {"accuracy": 0.5})
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("step 1/2  reward 0.5  mixed groups 1  length 5")
    assert lines[2] == "held-out at step 2: accuracy 0.5"
    assert "\x1b" not in stream.getvalue()


def test_auto_is_plain_where_there_is_no_terminal():
    assert type(choose_console("auto", io.StringIO())).__name__ == "PlainConsole"
    with pytest.raises(InputError, match="console 'loud'"):
        choose_console("loud", io.StringIO())


def test_the_live_view_shows_hostile_text_as_text():
    view = View("run", 10, step=4)
    view.record({"reward": 0.25, "groups/frac_all_wrong": 0.5, "groups/frac_mixed": 0.5, "groups/frac_all_correct": 0})
    view.rollout = ("[bold]2+2[/]", "\x1b[2J\x07[red]four[/red]", "reward 1.0")
    view.findings = [("error", "TR01 [x] cut off")]
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=100, color_system=None).print(render(view))
    shown = stream.getvalue()
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown
    assert "[red]four[/red]" in shown
    assert "[bold]2+2[/]" in shown
    assert "TR01 [x] cut off" in shown
    assert "step 4/10" in shown


def test_sparklines_skip_what_is_not_finite_and_average_long_series():
    assert sparkline([0.0, float("nan"), 7.0]) == "▁█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert len(sparkline(list(range(1000)), width=20)) == 20
    assert sparkline([]) == ""


def test_null_monitor_takes_every_call(make):
    monitor = NullMonitor()
    drive(monitor, (1,), make)
    monitor.heldout(1, {})
    monitor.rewind(0)
    monitor.load_state_dict(monitor.state_dict())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"console": "loud"}, "monitoring.console"),
        ({"trackers": ("mlflow",)}, "monitoring.trackers"),
        ({"rollouts_every": 0}, "rollouts_every"),
        ({"doctor_every": -1}, "doctor_every"),
    ],
)
def test_options_name_what_is_wrong(wrong, message):
    with pytest.raises(InputError, match=message):
        MonitorOptions(**wrong)


def test_a_missing_tracker_says_how_to_install_it(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="pip install wandb"):
        Monitor(tmp_path, MonitorOptions(trackers=("wandb",), console="quiet"), 1).start()


def test_the_learning_curve_is_a_picture(tmp_path, make):
    monitor = Monitor(tmp_path, MonitorOptions(console="quiet"), 6)
    drive(monitor, range(1, 7), make)
    monitor.heldout(6, {"accuracy": 0.5})
    history = read_metrics(tmp_path)
    learning_curve(history, tmp_path / "a.png", tmp_path / "a.svg", title="t")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    text = terminal_curve(history)
    assert "held-out accuracy" in text
    assert "\x1b" not in text
    assert len({len(text.splitlines()) for _ in range(2)}) == 1
    assert terminal_curve(history) == text


def test_no_curve_without_data():
    from assay.monitoring.history import from_lines

    with pytest.raises(InputError, match="no learning curve"):
        terminal_curve(from_lines([{"step": 1, "loss": 1.0}]))


def test_smoothing_keeps_constants_and_length():
    import numpy as np

    assert smooth(np.full(7, 2.5), 5).tolist() == [2.5] * 7


def test_before_and_after():
    stream = io.StringIO()
    table = before_after_table({"accuracy": 0.25, "gone": None}, {"accuracy": 0.75, "new": 1})
    Console(file=stream, width=80).print(table)
    assert "+0.500" in stream.getvalue()
    assert "—" in stream.getvalue()
