"""assay's math verifier beside math-verify and TRL's accuracy_reward on the same rows: errors, rows a second, latency.

    python benchmarks/verifiers.py [--rows N]

Part 1: plain numeric GSM8K-style answers; each verifier marks the same slice in turn, several rounds, and ratios are
taken within a round, so that a busy machine slows all alike. Part 2: a mixture of ordinary answers, latency for one
answer. Part 3: the reported failure cases in tests/data, each in a process that is killed after 20 seconds.
math-verify gets what its README shows, with gold boxed; TRL gets gold boxed as `solution`, one conversation a row.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from assay.rewards.mathematics import Math

CASES = Path(__file__).parents[1] / "tests" / "data" / "math_cases.jsonl.gz"
ORDINARY = [
    "\\frac{{{a}}}{{{b}}}",
    "{a}\\sqrt{{{b}}}",
    "({a}, {b})",
    "{a}x+{b}",
    "{a}.{b}",
    "\\$ {a}",
    "{a} \\text{{ cm}}",
]
KILL_AFTER_S = 20.0

Mark = Callable[[str, str], bool]


def assay_marks() -> tuple[Mark, Math]:
    verifier = Math()
    return lambda completion, gold: verifier.judge(completion, gold, {}).reward == 1.0, verifier


def math_verify_marks() -> Mark:
    from math_verify import parse, verify

    return lambda completion, gold: bool(verify(parse(f"\\boxed{{{gold}}}"), parse(completion)))


def trl_marks() -> Mark:
    from trl.rewards import accuracy_reward

    def mark(completion: str, gold: str) -> bool:
        message = [{"role": "assistant", "content": completion}]
        return accuracy_reward(completions=[message], solution=[f"\\boxed{{{gold}}}"])[0] == 1.0

    return mark


def plain_rows(count: int) -> list[tuple[str, str]]:
    """Right and wrong integers behind three lines of working."""
    source = random.Random(0)
    rows = []
    for _ in range(count):
        a, b = source.randrange(1, 2000), source.randrange(1, 50)
        working = f"There are {a} boxes with {b} each.\n{a} * {b} = <<{a}*{b}={a * b}>>{a * b}\n" * 3
        rows.append((f"{working}The answer is \\boxed{{{a * b + source.randrange(2)}}}.", f"{a * b}"))
    return rows


def ordinary_rows(count: int) -> list[tuple[str, str]]:
    """Six in seven plain numbers, one in seven another kind of answer, as in MATH-style sets."""
    source = random.Random(1)
    rows = plain_rows(count)
    for index in range(0, count, 7):
        shape = source.choice(ORDINARY)
        a, b = source.randrange(2, 99), source.randrange(2, 99)
        gold = shape.format(a=a, b=b)
        answer = shape.format(a=a, b=b + source.randrange(2))
        rows[index] = (f"We simplify. Hence $\\boxed{{{answer}}}$.", gold)
    return rows


def throughput(marks: dict[str, Mark], rows: list[tuple[str, str]], rounds: int) -> dict[str, list[float]]:
    """CPU-seconds rows a second of each verifier, in turn within a round."""
    rates: dict[str, list[float]] = {name: [] for name in marks}
    for number in range(rounds):
        part = rows[number::rounds]
        for name, mark in marks.items():
            started = time.process_time()
            for completion, gold in part:
                mark(completion, gold)
            rates[name].append(len(part) / (time.process_time() - started))
    return rates


def latencies(mark: Mark, rows: list[tuple[str, str]]) -> list[float]:
    seconds = []
    for completion, gold in rows:
        started = time.perf_counter()
        mark(completion, gold)
        seconds.append(time.perf_counter() - started)
    return sorted(seconds)


def one_case(name: str, connection: multiprocessing.connection.Connection) -> None:
    """A process that marks cases as they come; killed from outside when one does not come back."""
    logging.disable(logging.CRITICAL)
    mark = {"assay": lambda: assay_marks()[0], "math-verify": math_verify_marks, "trl": trl_marks}[name]()
    while True:
        completion, gold = connection.recv()
        try:
            connection.send(mark(completion, gold))
        except Exception:  # noqa: BLE001 - a peer that raises has given no verdict
            connection.send(None)


def failure_cases(name: str) -> dict[str, float]:
    """Errors on the firm cases, and how long the slowest took."""
    context = multiprocessing.get_context("spawn")
    with gzip.open(CASES, "rt", encoding="utf-8") as file:
        firm = [case for case in map(json.loads, file) if not case["debatable"]]
    result = {"false positives": 0, "false negatives": 0, "killed": 0, "slowest s": 0.0}
    process = parent = None
    for case in firm:
        if process is None:
            parent, child = context.Pipe()
            process = context.Process(target=one_case, args=(name, child), daemon=False)
            process.start()
            parent.send(("\\boxed{1}", "1"))
            parent.recv()
        started = time.perf_counter()
        parent.send((case["completion"], case["gold"]))
        paid = None
        if parent.poll(KILL_AFTER_S):
            paid = parent.recv()
        else:
            process.kill()
            process.join()
            process = None
            result["killed"] += 1
        result["slowest s"] = max(result["slowest s"], time.perf_counter() - started)
        if bool(paid) != case["expected"]:
            result["false positives" if paid else "false negatives"] += 1
    if process is not None:
        process.kill()
        process.join()
    return {"cases": len(firm), **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    ours, verifier = assay_marks()
    marks: dict[str, Mark] = {"assay": ours, "math-verify": math_verify_marks(), "trl": trl_marks()}
    for mark in marks.values():  # grammars and imports load at the first answer
        mark("\\boxed{\\sqrt{2}}", "2\\sqrt{3}")
    rates = throughput(marks, plain_rows(options.rows), options.rounds)
    print("1. plain numeric answers, rows per CPU second (median of rounds)")
    for name, values in rates.items():
        ratio = statistics.median(a / b for a, b in zip(rates["assay"], values))
        print(f"   {name:12s} {statistics.median(values):9.0f}   assay is {ratio:.1f} times as fast")
    print("2. ordinary answers, wall-clock milliseconds for one")
    rows = ordinary_rows(options.rows)
    for name, mark in marks.items():
        seconds = latencies(mark, rows)
        p50, p99 = (1e3 * seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
        print(f"   {name:12s} p50 {p50:7.2f}   p99 {p99:7.2f}   max {1e3 * seconds[-1]:7.2f}")
    verifier.close()
    print("3. reported failure cases (firm ones)")
    for name in marks:
        print(f"   {name:12s} " + ", ".join(f"{key} {value:.3g}" for key, value in failure_cases(name).items()))


if __name__ == "__main__":
    main()
