"""A run that is written while doctor, report and browser read it: the files are what they would be without them."""

import hashlib
import subprocess
import sys

from assay.monitoring.doctor import diagnose
from assay.monitoring.report import write_report
from assay.monitoring.sources import open_run
from assay.monitoring.viewer import Filter, find_groups

STEPS = 60
WRITER = """
import sys, time
from pathlib import Path
from assay.monitoring.simulation import World, simulate
from assay.monitoring.store import MetricsLog, RolloutStore

run = simulate(World(seed=1, steps=int(sys.argv[2]), stored_steps=int(sys.argv[2]), prompts=4))
folder = Path(sys.argv[1])
log, store = MetricsLog(folder / "metrics.jsonl"), RolloutStore(folder / "rollouts")
for line in run.lines:
    step = line.pop("step")
    if step in run.groups and "reward" in line:
        store.write(step, run.groups[step])
    log.append(step, {"time/unix": 1.0, **line})
    time.sleep(float(sys.argv[3]))
"""


def start(folder, pause):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(STEPS), str(pause)])


def contents(folder):
    files = [folder / "metrics.jsonl", *sorted((folder / "rollouts").iterdir())]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_readers_beside_a_writer(tmp_path):
    alone, watched = tmp_path / "alone", tmp_path / "watched"
    assert start(alone, 0).wait(120) == 0
    writer = start(watched, 0.05)
    looks, seen = 0, [0]
    try:
        while writer.poll() is None:
            if not (watched / "metrics.jsonl").exists():
                continue
            run = open_run(watched)
            diagnosis = diagnose(run)
            assert not diagnosis.warnings
            seen.append(diagnosis.steps)
            # A line promises that its step's rollouts are there.
            stored = set(run.rollouts.steps()) if run.rollouts else set()
            logged = set(run.history.series("reward")[0].tolist())
            assert logged <= stored
            if run.rollouts:
                assert find_groups(run.rollouts, Filter(), limit=4)["groups"]
            if looks % 3 == 0 and run.rollouts:
                write_report(run, diagnosis, tmp_path / "report.html")
            looks += 1
    finally:
        writer.kill()
        writer.wait()
    assert looks >= 3
    assert seen == sorted(seen)
    assert open_run(watched).history.steps[-1] == STEPS
    assert contents(watched) == contents(alone)
