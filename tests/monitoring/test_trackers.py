"""Trackers through their own libraries, offline, where these are installed: what was logged is what they hold."""

import json
import sqlite3

import pytest

from assay.monitoring import Monitor, MonitorOptions


def drive(folder, tracker):
    """Two starts of one run, the second of which repeats a step, as a resume does."""
    for steps in ([1, 2, 3], [3, 4]):
        options = MonitorOptions(console="quiet", trackers=(tracker,), tracker_offline=True, project="assay-test")
        monitor = Monitor(folder, options, 4, {"train": {"steps": 4}})
        monitor.start()
        for step in steps:
            monitor.step(step, {"reward": step / 10})
        monitor.heldout(steps[-1], {"accuracy": 0.5})
        monitor.finish()


def test_tensorboard(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    drive(tmp_path / "run", "tensorboard")
    found = events.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    assert [event.step for event in found.Scalars("reward")] == [1, 2, 3, 3, 4]
    assert [event.value for event in found.Scalars("heldout/accuracy")] == [0.5, 0.5]


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    drive(tmp_path / "run", "wandb")
    files = list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert files
    assert all(path.stat().st_size > 0 for path in files)
    # One id for both starts, so that they continue one curve.
    assert len({path.stem for path in files}) == 1


def test_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    drive(tmp_path / "run", "trackio")
    with sqlite3.connect(tmp_path / "trackio" / "assay-test.db") as database:
        rows = database.execute("select step, metrics from metrics where run_name = 'run' order by id").fetchall()
    rewards = [(step, json.loads(metrics)["reward"]) for step, metrics in rows if b"reward" in bytes(metrics)]
    assert [step for step, _ in rewards] == [1, 2, 3, 3, 4]
    assert rewards[-1] == (4, 0.4)
