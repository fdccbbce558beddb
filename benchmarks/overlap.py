"""How much of writing and training overlaps: step time against the longer of the two, and against their sum.

    OMP_NUM_THREADS=1 python benchmarks/overlap.py [--ratios 0.5 1 2] [--staleness 1 2] [--steps 30] [--place elsewhere]
                                                   [--verifier 0.0] [--json]

A small random model is really trained on this machine. The engine is a stand-in: a process of its own that writes one
token of every open completion a tick. `--place here` spends the tick computing (a second core is needed), `elsewhere`
spends it asleep, as a server on another machine does. Ticks are set so that writing takes `--ratios` times as long as
training. `--verifier` is seconds of waiting for each completion's mark.

Columns: seconds a step of writing and marking in a synchronous run (W), of the synchronous step, of training in the
asynchronous run (T), and of its step, with ratios to max(W, T) and to W + T. 1.0 times the maximum is perfect overlap.
T is measured in the run that it is compared with, because other load on the machine changes it from run to run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import assay
from assay.api import session
from assay.policy.tiny import save_tiny
from assay.records import Completion, Finish, Segment, VersionSpan
from assay.rollouts.protocol import Request

ROWS = [{"question": f"Say {'x' * n}.", "answer": "x"} for n in range(1, 65)]
SKIPPED = 4  # steps at the start, while the pipeline fills


def serve(pipe: Any, tick: float, computes: bool) -> None:
    """The engine's process: continuous batching of made-up tokens."""
    version = 0
    open_: dict[int, list[list[Any]]] = {}
    while True:
        while pipe.poll(0 if open_ else None):
            message = pipe.recv()
            if message[0] == "close":
                return
            if message[0] == "push":
                version = message[1]
            else:
                _, handle, seed, n, limit = message
                lengths = np.random.default_rng(seed).integers(max(1, limit // 4), limit + 1, size=n)
                open_[handle] = [[int(length), 0, []] for length in lengths]
            if not open_:
                continue
        until = time.monotonic() + tick
        while computes and time.monotonic() < until:
            pass
        time.sleep(max(0.0, until - time.monotonic()))
        for handle, rows in list(open_.items()):
            for row in rows:
                if row[1] < row[0]:
                    if not row[2] or row[2][-1][1] != version:
                        row[2].append((row[1], version))
                    row[1] += 1
            if all(row[1] == row[0] for row in rows):
                pipe.send((handle, [(row[0], row[2]) for row in open_.pop(handle)]))


class ProcessEngine:
    """`Engine` over `serve`."""

    is_concurrent = True

    def __init__(self, tick: float, computes: bool) -> None:
        self.pipe, far = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=serve, args=(far, tick, computes), daemon=True)
        self.process.start()
        self.results: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self.handles, self.lock, self.open = itertools.count(), threading.Lock(), 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        try:
            while True:
                self.results.put(self.pipe.recv())
        except (EOFError, OSError):
            self.results.put(None)

    def submit(self, request: Request) -> int:
        with self.lock:
            handle = next(self.handles)
            self.open += 1
            self.pipe.send(("submit", handle, request.seed, request.n, request.sampling.max_tokens))
        return handle

    def completed(self) -> Iterator[tuple[int, list[Completion]]]:
        while self.open and (found := self.results.get()) is not None:
            with self.lock:
                self.open -= 1
            yield found[0], [self.completion(found[0], *row) for row in found[1]]

    def completion(self, handle: int, length: int, spans: list[tuple[int, int]]) -> Completion:
        tokens = np.random.default_rng([handle, length]).integers(97, 123, size=length)
        segment = Segment(tokens, np.ones(length, bool), np.full(length, -3.0, np.float32))
        return Completion([segment], Finish.LENGTH, policy_versions=tuple(VersionSpan(*span) for span in spans))

    def cancel(self, handles: Iterable[int]) -> None: ...

    def push(self, weights: Any, version: int) -> None:
        for _ in weights:
            pass
        with self.lock:
            self.pipe.send(("push", version))

    def close(self) -> None:
        with self.lock:
            self.pipe.send(("close",))
        self.process.join()
        self.results.put(None)


def run(folder: Path, name: str, tick: float, arguments: argparse.Namespace, staleness: int) -> dict[str, float]:
    """Mean seconds a step by phase."""

    def letters(completions: list[Any], **_: Any) -> list[float]:
        time.sleep(arguments.verifier * len(completions))
        texts = [completion[-1]["content"] for completion in completions]
        return [len(set(text)) / len(text) for text in texts]

    session.build_engine = lambda *_: ProcessEngine(tick, arguments.place == "here")  # type: ignore[assignment]
    result = assay.train(
        model=str(folder / "model"), dataset=ROWS, rewards=[letters], preset="grpo", name=name, output_dir=str(folder),
        engine="vllm-server", max_staleness=staleness, num_generations=8, max_completion_length=arguments.tokens,
        prompts_per_step=4, steps=arguments.steps, dtype="float32", lora_rank=4, console="quiet", heldout_size=0,
        checkpoint_every=10_000, workers=32, rollouts_every=10_000,
    )  # fmt: skip
    lines = [line for line in result.metrics() if "step_time" in line][SKIPPED:]
    assert all(line["skipped_update"] == 0 for line in lines), "a step without a signal is no training"
    names = ("step_time", "time/generate", "time/score", "time/train", "time/sync", "time/wait_for_rollouts")
    found = {key: sum(line.get(key, 0.0) for line in lines) / len(lines) for key in names}
    return found | {"staleness/max": max(line["staleness/max"] for line in lines)}


def compare(folder: Path, ratio: float, train_seconds: float, arguments: argparse.Namespace) -> list[dict[str, float]]:
    tick = ratio * train_seconds / arguments.tokens
    alone = run(folder, f"sync-{ratio}", tick, arguments, 0)
    writing = alone["time/generate"] + alone["time/score"]
    rows = []
    for staleness in arguments.staleness:
        ahead = run(folder, f"async-{ratio}-{staleness}", tick, arguments, staleness)
        step, training = ahead["step_time"], ahead["step_time"] - ahead["time/wait_for_rollouts"]
        rows.append(
            {
                "ratio": ratio, "max_staleness": staleness, "writing": writing, "training": training,
                "synchronous": alone["step_time"], "asynchronous": step,
                "to_maximum": step / max(writing, training), "to_sum": step / (writing + training),
                "staleness_max": ahead["staleness/max"],
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.5, 1.0, 2.0])
    parser.add_argument("--staleness", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--place", choices=["here", "elsewhere"], default="elsewhere")
    parser.add_argument("--verifier", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_tiny(folder / "model", "llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=4)
        first = run(folder, "calibration", 0.0, arguments, 0)
        train_seconds = first["time/train"] + first["time/sync"]
        rows = [row for ratio in arguments.ratios for row in compare(folder, ratio, train_seconds, arguments)]
    if arguments.json:
        print(json.dumps({"load": os.getloadavg()[0], "place": arguments.place, "rows": rows}))
        return
    print(f"engine {arguments.place}, {arguments.steps} steps, verifier {arguments.verifier:g} s a completion, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print("| W/T asked | max_staleness | W | sync step | T | async step | of max(W, T) | of W + T | oldest |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['ratio']:g} | {row['max_staleness']} | {row['writing']:.2f} | {row['synchronous']:.2f} "
            f"| {row['training']:.2f} | {row['asynchronous']:.2f} | {row['to_maximum']:.2f}x "
            f"| {row['to_sum']:.2f}x | {row['staleness_max']:.0f} |"
        )


if __name__ == "__main__":
    main()
