"""The pool with real programs: outcomes, limits, many at once, and deaths of every party."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from assay.sandbox import Ended, Level, Limits, Sandbox, SandboxOptions

SHORT = Limits(cpu_seconds=1, wall_seconds=60, memory_mb=128)


@pytest.mark.parametrize(
    ("program", "ended", "code"),
    [
        ("print('hello')", Ended.EXITED, 0),
        ("raise SystemExit(3)", Ended.EXITED, 3),
        ("raise SystemExit('words')", Ended.EXITED, 1),
        ("1 / 0", Ended.EXITED, 1),
        ("import os; os._exit(7)", Ended.EXITED, 7),
        ("import ctypes; ctypes.string_at(0)", Ended.SIGNALLED, None),
        ("while True: pass", Ended.CPU_LIMIT, None),
        ("x = bytearray(1 << 30)", Ended.MEMORY_LIMIT, 1),
        ("print('x' * (1 << 20))", Ended.OUTPUT_LIMIT, 0),
    ],
)
def test_how_a_program_ended(box, program, ended, code):
    result = box.run(program, limits=SHORT)
    assert (result.ended, result.exit_code) == (ended, code)
    assert result.level is box.isolation.level


def test_wall_limit_is_retried_once_where_the_program_hardly_ran(box):
    before = box.retries["stalls"]
    result = box.run("import time; time.sleep(100)", limits=Limits(wall_seconds=0.3))
    assert result.ended is Ended.WALL_LIMIT
    assert result.retried == 1
    assert box.retries["stalls"] == before + 1


def test_wall_limit_of_a_program_that_ran_is_not_retried(box):
    result = box.run("while True: pass", limits=Limits(cpu_seconds=10, wall_seconds=1.0))
    assert (result.ended, result.retried) == (Ended.WALL_LIMIT, 0)
    assert result.usage.cpu_s > 0.05


def test_input_arguments_output_and_errors_are_the_programs_own(box):
    program = "import sys\nprint(sys.stdin.read()[::-1], sys.argv[1:])\nprint('bad', file=sys.stderr)"
    result = box.run(program, stdin="héllo", argv=["a", "b"])
    assert result.stdout.decode() == "olléh ['a', 'b']\n"
    assert result.stderr == b"bad\n"


def test_exit_handlers_threads_and_tracebacks_are_as_in_an_interpreter(box):
    program = (
        "import atexit, threading, time\natexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "print('main')\nraise ValueError('why')"
    )
    result = box.run(program)
    assert result.stdout.split() == [b"main", b"thread", b"last"]
    assert result.stderr.strip().endswith(b"ValueError: why")
    assert b"raise ValueError('why')" in result.stderr
    assert result.exit_code == 1


def test_the_programs_see_nothing_of_the_trainer(box):
    os.environ["ASSAY_SECRET_FOR_TEST"] = "s3cret"
    try:
        with Sandbox(SandboxOptions(workers=1)) as fresh:
            seen = fresh.run("import os; print(dict(os.environ))").stdout
    finally:
        del os.environ["ASSAY_SECRET_FOR_TEST"]
    assert b"s3cret" not in seen
    assert b"HOME" in seen


def test_no_state_survives_from_one_program_to_the_next(box):
    for _ in range(6):  # more than there are workers
        result = box.run(
            "import json, os\nprint(hasattr(json, 'mark'))\njson.mark = 1\n"
            "if os.path.exists('kept'): print('KEPT')\ntry: open('kept', 'w').close()\nexcept OSError: pass"
        )
        assert result.stdout == b"False\n"


def test_set_order_is_the_same_on_every_worker(box):
    program = "print(list({'a', 'b', 'c', 'dd', 'ee', 'ff'}))"
    assert len({result.stdout for _, result in box.run_many([program] * 8)}) == 1


def test_random_numbers_differ_between_runs(box):
    program = "import random, uuid; print(random.random(), uuid.uuid4())"
    assert len({result.stdout for _, result in box.run_many([program] * 8)}) == 8


def test_a_slow_program_does_not_hold_the_rest(box):
    order = [index for index, _ in box.run_many(["import time; time.sleep(3)", *["pass"] * 12])]
    assert order[-1] == 0


def test_threads_may_use_one_sandbox_at_once(box):
    results = []
    threads = [threading.Thread(target=lambda n=n: results.append((n, box.run(f"print({n})")))) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result.stdout == b"%d\n" % n for n, result in results)
    assert len(results) == 12


def test_coroutines(box):
    async def both():
        return await asyncio.gather(box.run_async("print(1)"), box.run_async("print(2)"))

    assert [result.stdout for result in asyncio.run(both())] == [b"1\n", b"2\n"]


def test_child_processes_where_they_are_allowed(box):
    if box.isolation.level is not Level.ISOLATED:
        pytest.skip("child processes need level isolated")
    program = (
        "import os, subprocess, sys, time\n"
        "print(subprocess.run([sys.executable, '-S', '-c', 'print(6 * 7)'], capture_output=True).stdout)\n"
        "n = 0\nwhile True:\n    try: pid = os.fork()\n    except OSError: break\n"
        "    if pid == 0: time.sleep(50)\n    n += 1\nprint(n)"
    )
    result = box.run(program, limits=Limits(processes=4, threads=4, wall_seconds=20))
    assert result.ok, result
    assert result.stdout.split() == [b"b'42\\n'", b"7"]


def test_packages_can_be_preloaded():
    with Sandbox(SandboxOptions(workers=1, preload=("numpy",))) as box:
        loaded = box.run("import sys; print('numpy' in sys.modules)")
        result = box.run("import numpy as np\nprint(np.linalg.solve(np.eye(2) * 2, [2, 4]))")
        assert (loaded.stdout, result.stdout) == (b"True\n", b"[1. 2.]\n")


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(ValueError, match="no_such_package"):
        Sandbox(SandboxOptions(preload=("no_such_package",)))


@pytest.mark.parametrize("limit", ["cpu_seconds", "memory_mb", "wall_seconds", "threads"])
def test_limits_of_nothing_are_refused(limit):
    with pytest.raises(ValueError, match=limit):
        Limits(**{limit: 0})


def test_programs_wait_for_memory_and_all_get_their_turn():
    with Sandbox(SandboxOptions(workers=1, runs_per_worker=8)) as box:
        box.pool.budget = box.pool.free_bytes = 700 << 20  # room for one of these at a time
        program = "import time; print(time.monotonic()); time.sleep(0.05); print(time.monotonic())"
        times = [tuple(map(float, result.stdout.split())) for _, result in box.run_many([program] * 4)]
        times.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(times))


def children_of(pid):
    """Children of any thread of a process."""
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def family(pid):
    """All descendants of a process."""
    found = []
    for child in children_of(pid):
        found += [child, *family(child)]
    return found


def gone(pids, seconds=10.0):
    """Wait until none of these processes lives; those that still do."""
    deadline = time.monotonic() + seconds
    while pids and time.monotonic() < deadline:
        pids = [pid for pid in pids if alive(pid)]
        time.sleep(0.02)
    return pids


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


LONG = "import os, time\nprint(1, flush=True)\ntime.sleep(60)"


def test_a_killed_worker_costs_one_retry_and_is_replaced():
    with Sandbox(SandboxOptions(workers=1)) as box:
        started = box.start("import time; time.sleep(1.5); print('done')")
        time.sleep(0.5)
        os.kill(box.pool.workers[0].zygote.process.pid, signal.SIGKILL)
        result = started.result()
        assert (result.stdout, result.retried) == (b"done\n", 1)
        assert box.retries["crashes"] == 1
        assert box.run("print(2)").stdout == b"2\n"


def test_a_worker_that_keeps_dying_is_our_fault_and_never_a_zero():
    from assay.rewards.code_grade import LocalExecutor, Status
    from assay.rewards.code_tests import CallTests

    with Sandbox(SandboxOptions(workers=1)) as box:
        grade = LocalExecutor(box).submit(
            "import time\ndef f(): time.sleep(30)", CallTests("f", (((), 1),)), Limits(wall_seconds=60)
        )
        killed = 0
        while not grade.done() and killed < 5:
            time.sleep(0.3)
            worker = box.pool.workers[0]
            if worker.runs and not worker.dead:
                os.kill(worker.zygote.process.pid, signal.SIGKILL)
                killed += 1
        assert grade.result().status is Status.INFRA_ERROR
        assert grade.result().reward is None
        assert killed == 2
        assert box.run("print(2)").ok


def test_nothing_survives_a_killed_trainer(owner):
    text = (
        "from assay.sandbox import Sandbox, SandboxOptions, Limits\nbox = Sandbox(SandboxOptions(workers=2))\n"
        f"runs = [box.start({LONG!r}, limits=Limits(wall_seconds=120)) for _ in range(4)]\n"
        "print('ready', flush=True)\nruns[0].result()"
    )
    trainer = owner(text)
    assert trainer.stdout.readline() == "ready\n"
    descendants = []
    deadline = time.monotonic() + 20
    while len(descendants) < 8 and time.monotonic() < deadline:  # two workers of two processes each, four programs
        descendants = family(trainer.pid)
        time.sleep(0.05)
    assert len(descendants) >= 6
    trainer.kill()
    trainer.wait()
    assert gone(descendants) == []


def test_nothing_survives_a_killed_trainer_that_has_forked(owner):
    text = (
        "import os, time\nfrom assay.sandbox import Sandbox, SandboxOptions\nbox = Sandbox(SandboxOptions(workers=1))\n"
        "child = os.fork()\nif child == 0: time.sleep(60)\nprint(child, flush=True)\ntime.sleep(60)"
    )
    trainer = owner(text)
    forked = int(trainer.stdout.readline())
    zygotes = [pid for pid in family(trainer.pid) if pid != forked]
    trainer.kill()
    trainer.wait()
    try:
        assert gone(zygotes) == []
        assert alive(forked)
    finally:
        os.kill(forked, signal.SIGKILL)


def test_a_sandbox_does_not_work_in_a_forked_child(owner):
    text = (
        "import os\nfrom assay.sandbox import Sandbox, SandboxOptions\nbox = Sandbox(SandboxOptions(workers=1))\n"
        "if os.fork() == 0:\n    try: box.run('pass')\n"
        "    except RuntimeError as error: print('refused', error, flush=True)\n    os._exit(0)\n"
        "os.wait()\nprint(box.run('print(5)').stdout)"
    )
    out, _ = owner(text).communicate(timeout=60)
    assert out.startswith("refused")
    assert "b'5\\n'" in out


def test_closing_leaves_no_process_and_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    box = Sandbox(SandboxOptions(workers=2))
    running = box.start(LONG, limits=Limits(wall_seconds=60))
    time.sleep(0.3)
    pids = [
        pid for worker in box.pool.workers for pid in (worker.zygote.process.pid, *family(worker.zygote.process.pid))
    ]
    box.close()
    box.close()
    assert gone(pids) == []
    assert len(os.listdir("/proc/self/fd")) == before
    assert running.cancelled() or running.exception() is not None or running.result().ended is Ended.INFRA_ERROR
    with pytest.raises(RuntimeError, match="closed"):
        box.run("pass")


def test_an_interpreter_that_ends_without_closing_leaves_nothing(owner):
    text = (
        "from assay.sandbox import Sandbox, SandboxOptions\nbox = Sandbox(SandboxOptions(workers=1))\n"
        "print(box.pool.workers[0].zygote.process.pid, flush=True)"
    )
    trainer = owner(text)
    pid = int(trainer.stdout.readline())
    assert trainer.wait(timeout=30) == 0
    assert gone([pid]) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_soak():
    """10,000 mixed programs, one in twenty hostile: no honest one is judged wrong, nothing is left."""
    script = Path(__file__).parents[2] / "benchmarks" / "sandbox.py"
    wrapper = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "--user", "--map-current-user", "--mount"]
    if subprocess.run([*wrapper, "true"], capture_output=True).returncode:
        pytest.skip("this host refuses a private mount namespace, without which no hostile program is run")
    command = [*wrapper, sys.executable, str(script), "soak", "--programs", "10000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
