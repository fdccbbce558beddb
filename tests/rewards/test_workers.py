"""Worker processes against real kills, real limits and a real dead parent."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from assay.rewards.workers import HandlerBroken, JobFailed, LimitReached, Limits, WorkerLost, WorkerPool

HANDLERS = """
import os, signal, time

def handle(job):
    kind = job["kind"]
    if kind == "echo":
        print("noise on standard output")
        return {"echo": job["value"], "pid": os.getpid()}
    if kind == "power":
        return {"digits": len(str(9 ** 9 ** 9))}
    if kind == "memory":
        return {"size": len([bytes(10**6) for _ in range(10**6)])}
    if kind == "sleep":
        time.sleep(job["seconds"])
        return {}
    if kind == "raise":
        raise KeyError("boom")
    if kind == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "once":
        if not os.path.exists(job["path"]):
            open(job["path"], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"survived": True}
    if kind == "exit":
        os._exit(3)
"""


@pytest.fixture
def handlers(tmp_path, monkeypatch):
    (tmp_path / "pool_handlers.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "pool_handlers:handle"


@pytest.fixture
def pool(handlers):
    made = WorkerPool(handlers, size=2, limits=Limits(cpu_s=0.5, wall_s=30, memory_mb=0))
    yield made
    made.close()


def alive(pid):
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] not in ("Z", "X")


def wait_until_dead(pid, seconds=20.0):
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_jobs_are_answered_and_printing_does_not_disturb(pool):
    assert [pool.call({"kind": "echo", "value": i})["echo"] for i in range(5)] == list(range(5))


def test_cpu_time_is_limited_inside_one_c_call_and_off_the_main_thread(pool):
    first = pool.call({"kind": "echo", "value": 0})["pid"]
    caught = []

    def run():
        try:
            pool.call({"kind": "power"})
        except LimitReached as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=60)
    assert caught == ["the limit of 0.5 CPU seconds"]
    assert wait_until_dead(first)
    assert pool.call({"kind": "echo", "value": "again"})["echo"] == "again"


def test_memory_is_limited(handlers):
    pool = WorkerPool(handlers, size=1, limits=Limits(cpu_s=20, wall_s=60, memory_mb=400))
    try:
        with pytest.raises(LimitReached, match="400 MB"):
            pool.call({"kind": "memory"})
        assert pool.call({"kind": "echo", "value": 1})["echo"] == 1
    finally:
        pool.close()


def test_a_worker_killed_from_outside_is_replaced_and_its_job_tried_again(pool, tmp_path):
    assert pool.call({"kind": "once", "path": str(tmp_path / "seen")}) == {"survived": True}


def test_a_job_that_crashes_its_worker_twice_is_to_blame_for_it(pool):
    with pytest.raises(LimitReached, match="SIGSEGV"):
        pool.call({"kind": "segfault"})
    with pytest.raises(WorkerLost):
        pool.call({"kind": "exit"})


def test_starving_and_raising_are_told_apart(handlers):
    pool = WorkerPool(handlers, size=1, limits=Limits(cpu_s=5, wall_s=0.5, memory_mb=0))
    try:
        with pytest.raises(WorkerLost, match="wall-clock"):
            pool.call({"kind": "sleep", "seconds": 60})
        with pytest.raises(JobFailed, match="boom"):
            pool.call({"kind": "raise"})
    finally:
        pool.close()


def test_a_handler_that_cannot_be_imported_is_an_installation_fault(tmp_path):
    pool = WorkerPool("no_such_module:handle", size=1)
    try:
        with pytest.raises(HandlerBroken, match="no_such_module"):
            pool.call({})
    finally:
        pool.close()


def test_close_leaves_no_process(pool):
    pids = {pool.call({"kind": "echo", "value": i})["pid"] for i in range(4)}
    pool.close()
    assert all(map(wait_until_dead, pids))
    with pytest.raises(RuntimeError, match="closed"):
        pool.call({"kind": "echo", "value": 1})


def test_a_dropped_pool_leaves_no_process(handlers):
    pool = WorkerPool(handlers, size=1)
    pid = pool.call({"kind": "echo", "value": 1})["pid"]
    del pool
    assert wait_until_dead(pid)


@pytest.mark.parametrize("job", ["idle", "power"])
def test_workers_die_with_a_parent_that_is_killed(handlers, tmp_path, job):
    """SIGKILL gives the parent no chance to clean up, and a worker inside one C call none to notice."""
    script = f"""
import sys, threading, time
sys.path.insert(0, {str(tmp_path)!r})
from assay.rewards.workers import WorkerPool, Limits
pool = WorkerPool({handlers!r}, size=1, limits=Limits(cpu_s=3000, wall_s=3000, memory_mb=0))
print(pool.call({{"kind": "echo", "value": 1}})["pid"], flush=True)
if {job!r} == "power":
    threading.Thread(target=pool.call, args=({{"kind": "power"}},), daemon=True).start()
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    time.sleep(0.5)
    assert alive(worker)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert wait_until_dead(worker)
