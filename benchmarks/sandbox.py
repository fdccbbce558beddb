"""How fast the sandbox marks programs, beside cold interpreters; and a soak that looks for leaks and wrong verdicts.

    python benchmarks/sandbox.py speed [--programs 300] [--rounds 5] [--bwrap PATH]
    python benchmarks/sandbox.py soak [--programs 10000]

`speed` interleaves the contestants round by round in one run, so that other load falls on all of them, and prints
programs a second and ratios. The same programs with the same five calls each; cold interpreters get them as a script
that prints the five results. "+ imports" also imports the standard modules that such programs use and that our workers
have warm.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from assay.rewards.code_grade import LocalExecutor, Status
from assay.rewards.code_tests import CallTests, StdioTests
from assay.sandbox import Limits, Sandbox, SandboxOptions

TASKS: list[tuple[str, list[Any]]] = [
    ("def f(a, b): return a * a + b * b", [((n, n + 1), n * n + (n + 1) ** 2) for n in range(5)]),
    ("def f(s): return s == s[::-1]", [((s,), s == s[::-1]) for s in ("abba", "abc", "", "x", "racecar")]),
    ("def f(xs): return sorted(xs)", [((list(range(n, 0, -1)),), list(range(1, n + 1))) for n in range(1, 6)]),
    ("from collections import Counter\ndef f(s): return dict(Counter(s))", [(("aab",), {"a": 2, "b": 1})] * 5),
    ("import math\ndef f(n): return math.factorial(n)", [((0,), 1), ((1,), 1), ((5,), 120), ((6,), 720), ((7,), 5040)]),
    ("import re\ndef f(s): return re.findall(r'\\d+', s)", [((f"a{n}b",), [str(n)]) for n in range(5)]),
]  # fmt: skip
WARM = "import collections, heapq, bisect, itertools, functools, re, json, math, random, decimal, datetime, dataclasses"
USUAL_BWRAP = "--unshare-all --die-with-parent --ro-bind / / --dev /dev --tmpfs /tmp --clearenv --cap-drop ALL"


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
        command = [
            *prefix,
            getattr(sys, "_base_executable", sys.executable),
            "-I",
            "-S",
            "-c",
            scripts[index % len(scripts)],
        ]
        done = subprocess.run(command, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()

    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, range(count)))
    return rate(count, time.perf_counter() - start)


def cpu() -> float:
    """CPU seconds of this process and of all its children that have ended."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def speed(programs: int, rounds: int, bwrap: str | None, level: str) -> None:
    cores, share = len(os.sched_getaffinity(0)), max(10, programs // 5)
    others: dict[str, tuple[list[str], str]] = {"cold python": ([], ""), "cold python + imports": ([], WARM)}
    if bwrap:
        prefix = [bwrap, *USUAL_BWRAP.split()]
        others |= {"bubblewrap + cold python": (prefix, ""), "bubblewrap + cold python + imports": (prefix, WARM)}
    rates: dict[str, list[float]] = {"assay": [], **{name: [] for name in others}}
    spent = dict.fromkeys(rates, 0.0)
    latencies: list[float] = []
    begin = cpu()
    with Sandbox(SandboxOptions(at_most=level)) as box:
        for number in range(rounds):
            got, walls = ours(LocalExecutor(box), programs)
            rates["assay"].append(got)
            latencies += walls
            for name, (prefix, imports) in others.items():
                before = cpu()
                rates[name].append(cold(share, prefix, imports, cores))
                spent[name] += cpu() - before
            print(f"round {number + 1}/{rounds}", file=sys.stderr)
        level = box.isolation.level.label
    spent["assay"] = cpu() - begin - sum(spent.values())  # starting the workers included
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}, {rounds} x {programs} programs, 5 calls each, level {level}")
    print(f"{'':36} programs/s   ours is   CPU ms   ours takes")
    mine = spent["assay"] / (rounds * programs)
    for name, measured in rates.items():
        each = spent[name] / (rounds * (programs if name == "assay" else share))
        wall = statistics.median(our / their for our, their in zip(rates["assay"], measured, strict=True))
        # bubblewrap does not wait for the interpreter inside, so its CPU time cannot be seen from here.
        used = "       -            -" if name.startswith("bubble") else f"{each * 1e3:8.1f} {mine / each:12.2f}x"
        print(f"{name:36} {statistics.median(measured):10.1f} {wall:8.2f}x {used}")
    latencies.sort()
    p50, p95 = (latencies[int(len(latencies) * q)] * 1e3 for q in (0.5, 0.95))
    print(f"wall time of one program: p50 {p50:.1f} ms, p95 {p95:.1f} ms")


# Each proves first that it is inside: where /proc can be read it does nothing.
INSIDE = "try: open('/proc/self/status')\nexcept OSError: pass\nelse: raise SystemExit\n"
HOSTILE = [
    "import os; os._exit(0)",
    "def f(*a):\n    while True: pass",
    "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "import os\nfor _ in range(1000):\n    try: pid = os.fork()\n    except OSError: break\n"
    "    if pid == 0: os._exit(0)\ndef f(*a): return 0",
    "import os\nwhile True: os.write(1, b'x' * 65536)",
    "import threading, time\nfor _ in range(1000): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "import os\nos.write(3, b'garbage' * 1000)\ndef f(*a): return 0",
    "import ctypes\nctypes.string_at(0)",
]


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def processes() -> set[str]:
    return {entry for entry in os.listdir("/proc") if entry.isdigit() and b"assay/sandbox/zygote.py" in command(entry)}


def command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def state() -> dict[str, set[str]]:
    """What a sandbox could leave behind, by name."""
    return {
        "descriptors": set(os.listdir("/proc/self/fd")),
        "processes": processes(),
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "control groups": set(Path("/proc/self/cgroup").read_text().splitlines()),
        "temporary files": {name for name in os.listdir(tempfile.gettempdir()) if "assay" in name},
    }


def batch(rng: random.Random, count: int) -> tuple[list[tuple[str, Any]], list[bool]]:
    """Programs with their tests, and which of them are honest: 19 of 20, a fifth of those by standard input."""
    jobs: list[tuple[str, Any]] = []
    honest = [rng.random() >= 0.05 for _ in range(count)]
    for good in honest:
        code, cases = rng.choice(TASKS)
        if good and rng.random() < 0.2:
            jobs.append(("print(sum(map(int, input().split())))", StdioTests((("3 4\n", "7\n"),))))
        else:
            jobs.append((code if good else INSIDE + rng.choice(HOSTILE), CallTests("f", tuple(cases))))
    return jobs, honest


def soak(programs: int) -> None:
    """Fails where an honest program is judged wrong, a hostile one paid, or anything is left behind."""
    rng = random.Random(0)
    before, wrong, memory = state(), list[str](), list[float]()
    start = time.perf_counter()
    with Sandbox(SandboxOptions(limits=Limits(cpu_seconds=1, wall_seconds=8, memory_mb=128))) as box:
        executor = LocalExecutor(box)
        for first in range(0, programs, 500):
            jobs, honest = batch(rng, min(500, programs - first))
            for index, grade in executor.grade_many(jobs):
                if grade.reward != float(honest[index]):
                    wrong.append(f"{'honest' if honest[index] else 'hostile'}: {grade}\n")
            gc.collect()
            memory.append(resident())
            print(f"{first + len(jobs)} programs, {len(wrong)} wrong, {memory[-1]:.0f} MiB", file=sys.stderr)
        retries = box.retries
    elapsed = time.perf_counter() - start
    after = state()
    left = [f"{name}: {after[name] - before[name]}" for name in before if len(after[name]) > len(before[name])]
    print(f"{programs} programs in {elapsed:.0f} s ({rate(programs, elapsed):.0f}/s), {len(wrong)} wrong verdicts")
    print(f"retries {retries}; left behind: {', '.join(left) or 'nothing'}")
    print(f"memory of the parent {memory[0]:.0f} -> {memory[-1]:.0f} MiB")
    print(*wrong[:20], sep="", end="")
    sys.exit(bool(wrong or left or memory[-1] - memory[min(1, len(memory) - 1)] > 20))


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
