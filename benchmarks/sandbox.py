"""How fast the sandbox marks programs, beside cold interpreters; and a soak that looks for leaks and wrong verdicts.

    python benchmarks/sandbox.py speed [--programs 300] [--rounds 5] [--bwrap PATH]
    python benchmarks/sandbox.py soak [--programs 10000]

`speed` interleaves the contestants round by round in one run, so that other load falls on all of them, and prints programs a second
and ratios. The same programs with the same five calls each; cold interpreters get them as a script that prints the five results.
"cold + imports" also imports the standard modules that our workers have warm, which programs of such datasets use.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from assay.rewards.code_grade import LocalExecutor, Status
from assay.rewards.code_tests import CallTests, StdioTests
from assay.sandbox import Limits, Sandbox, SandboxOptions

TASKS = [
    ("def f(a, b): return a * a + b * b", [((n, n + 1), n * n + (n + 1) ** 2) for n in range(5)]),
    ("def f(s): return s == s[::-1]", [((s,), s == s[::-1]) for s in ("abba", "abc", "", "x", "racecar")]),
    ("def f(xs): return sorted(xs)", [((list(range(n, 0, -1)),), list(range(1, n + 1))) for n in range(1, 6)]),
    ("from collections import Counter\ndef f(s): return dict(Counter(s))", [(("a" * n,), {"a": n}) for n in range(1, 6)]),
    ("import math\ndef f(n): return math.factorial(n)", [((n,), v) for n, v in ((0, 1), (1, 1), (5, 120), (6, 720), (7, 5040))]),
    ("import re\ndef f(s): return re.findall(r'\\d+', s)", [((f"a{n}b",), [str(n)]) for n in range(5)]),
]  # fmt: skip
WARM = "import collections, heapq, bisect, itertools, functools, re, json, math, random, decimal, datetime, typing, dataclasses"
USUAL_BWRAP = "--unshare-all --die-with-parent --ro-bind / / --dev /dev --tmpfs /tmp --clearenv --cap-drop ALL".split()  # noqa: SIM905


def rate(count: int, seconds: float) -> float:
    return count / seconds


def ours(executor: LocalExecutor, count: int) -> tuple[float, list[float]]:
    """Programs a second, and each program's wall time inside the sandbox."""
    jobs = [(code, CallTests("f", tuple(cases))) for code, cases in (TASKS[i % len(TASKS)] for i in range(count))]
    start = time.perf_counter()
    grades = [grade for _, grade in executor.grade_many(jobs)]
    elapsed = time.perf_counter() - start
    assert all(grade.status is Status.PASSED for grade in grades), "an honest program failed"
    return rate(count, elapsed), [grade.usage.wall_s for grade in grades]


def cold(count: int, prefix: list[str], imports: str, workers: int) -> float:
    """Programs a second with a new interpreter for each."""
    scripts = [
        f"{imports}\n{code}\nfor args in {[args for args, _ in cases]!r}: print(f(*args))" for code, cases in TASKS
    ]

    def one(index: int) -> None:
        command = [*prefix, sys._base_executable, "-I", "-S", "-c", scripts[index % len(scripts)]]
        done = subprocess.run(command, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()

    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, range(count)))
    return rate(count, time.perf_counter() - start)


def speed(programs: int, rounds: int, bwrap: str | None, level: str) -> None:
    cores = len(os.sched_getaffinity(0))
    share = max(10, programs // 5)
    contestants: dict[str, list[float]] = {}
    latencies: list[float] = []
    with Sandbox(SandboxOptions(at_most=level)) as box:
        executor = LocalExecutor(box)
        ours(executor, 50)
        for number in range(rounds):
            got, walls = ours(executor, programs)
            latencies += walls
            contestants.setdefault(f"assay, {box.isolation.level.label}", []).append(got)
            contestants.setdefault("cold python", []).append(cold(share, [], "", cores))
            contestants.setdefault("cold python + imports", []).append(cold(share, [], WARM, cores))
            if bwrap:
                prefix = [bwrap, *USUAL_BWRAP]
                contestants.setdefault("bubblewrap + cold python", []).append(cold(share, prefix, "", cores))
                contestants.setdefault("bubblewrap + cold python + imports", []).append(
                    cold(share, prefix, WARM, cores)
                )
            print(f"round {number + 1}/{rounds}", file=sys.stderr)
    best = next(iter(contestants))
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}, {programs} programs a round, 5 calls each")
    for name, rates in contestants.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(contestants[best], rates, strict=True))
        print(f"{name:36} {statistics.median(rates):7.1f} programs/s   ours is {ratio:5.2f}x")
    latencies.sort()
    print(
        f"wall time of one program: p50 {latencies[len(latencies) // 2] * 1e3:.1f} ms, p95 {latencies[int(len(latencies) * 0.95)] * 1e3:.1f} ms"
    )


HOSTILE = [
    "import os; os._exit(0)",
    "def f(*a):\n    while True: pass",
    "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "import os\nfor _ in range(1000):\n    try: os.fork()\n    except OSError: break\ndef f(*a): return 0",
    "import os\nwhile True: os.write(1, b'x' * 65536)",
    "import threading, time\nfor _ in range(1000): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "import os\nos.write(3, b'garbage' * 1000)\ndef f(*a): return 0",
    "import ctypes\nctypes.string_at(0)",
]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def processes() -> set[str]:
    return {entry for entry in os.listdir("/proc") if entry.isdigit() and b"assay/sandbox/zygote.py" in command(entry)}


def command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def soak(programs: int) -> None:
    """Mixed programs, one in twenty hostile; fails where an honest one is judged wrong, a hostile one paid, or anything is left."""
    rng = random.Random(0)
    small = Limits(cpu_seconds=1, wall_seconds=8, memory_mb=128)
    before = (
        open_files(),
        processes(),
        Path("/proc/self/mounts").read_text(),
        sorted(os.listdir(tempfile.gettempdir())),
    )
    wrong: list[str] = []
    memory: list[float] = []
    start = time.perf_counter()
    with Sandbox(SandboxOptions(limits=small)) as box:
        executor = LocalExecutor(box)
        for first in range(0, programs, 500):
            jobs, honest = [], []
            for _ in range(min(500, programs - first)):
                honest.append(rng.random() >= 0.05)
                code, cases = rng.choice(TASKS)
                if not honest[-1]:
                    code = rng.choice(HOSTILE)
                if honest[-1] and rng.random() < 0.2:
                    jobs.append(("print(sum(map(int, input().split())))", StdioTests((("3 4\n", "7\n"),))))
                else:
                    jobs.append((code, CallTests("f", tuple(cases))))
            for index, grade in executor.grade_many(jobs):
                if grade.reward != float(honest[index]):
                    wrong.append(f"{'honest' if honest[index] else 'hostile'}: {grade}")
            gc.collect()
            memory.append(resident())
            print(f"{first + len(jobs)} programs, {len(wrong)} wrong verdicts, {memory[-1]:.0f} MiB", file=sys.stderr)
        retries = box.retries
    elapsed = time.perf_counter() - start
    after = (
        open_files(),
        processes(),
        Path("/proc/self/mounts").read_text(),
        sorted(os.listdir(tempfile.gettempdir())),
    )
    names = ("descriptors", "processes", "mounts", "temporary files")
    left = [name for name, one, other in zip(names, before[:3], after[:3], strict=False) if one != other]
    left += [f"file {x}" for x in set(after[3]) - set(before[3]) if "assay" in x]
    growth = memory[-1] - memory[min(1, len(memory) - 1)]
    print(
        f"{programs} programs in {elapsed:.0f} s ({programs / elapsed:.0f}/s), {len(wrong)} wrong verdicts, retries {retries}"
    )
    print(f"left behind: {', '.join(left) or 'nothing'}; memory {memory[0]:.0f} -> {memory[-1]:.0f} MiB")
    print("\n".join(wrong[:20]), end="")
    sys.exit(bool(wrong or left or growth > 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "soak"])
    parser.add_argument("--programs", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bwrap", default=shutil.which("bwrap"))
    parser.add_argument("--level", default="isolated")
    options = parser.parse_args()
    if options.what == "speed":
        speed(options.programs or 300, options.rounds, options.bwrap, options.level)
    else:
        soak(options.programs or 10_000)


if __name__ == "__main__":
    main()
