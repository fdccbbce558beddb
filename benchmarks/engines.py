"""Generation, engine against engine: tokens a CPU-second, in turn, each in a process of its own.

    VENV/bin/python benchmarks/engines.py --model smollm2 --rounds 2        # an environment with vLLM

Forced, equal lengths (nothing stops early), so that ragged ends do not favour anyone; the same LoRA policy, pushed once
before. CPU seconds of the process are compared, because other programs share the machine; on a GPU use wall seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

ENGINES = ("transformers", "vllm", "vllm merged")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=160)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2, help="times that each engine has its turn")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        measure(options)
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ENGINES}
    for turn in range(options.rounds):
        for name in ENGINES:
            command = [sys.executable, __file__, *sys.argv[1:], "--worker", name]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"turn {turn + 1} {name}: {found[name][-1]}", file=sys.stderr)
    report(options, found)


def report(options: argparse.Namespace, found: dict[str, list[dict[str, float]]]) -> None:
    rows = options.prompts * options.group
    print(
        f"{options.model}, {options.dtype}, one thread, {rows} rows: "
        f"{options.prompt_tokens} tokens read, {options.tokens} written"
    )
    base = statistics.median(item["per_cpu_second"] for item in found[ENGINES[0]])
    for name in ENGINES:
        rates = [item["per_cpu_second"] for item in found[name]]
        push = statistics.median(item["push_cpu_seconds"] for item in found[name])
        print(
            f"{name:13} {statistics.median(rates):6.0f} tokens a CPU-second ({min(rates):.0f}-{max(rates):.0f}), "
            f"{statistics.median(rates) / base:.2f} times transformers; a push {push:.2f} CPU-s"
        )


def measure(options: argparse.Namespace) -> None:
    """One engine: a warm-up round, then three measured ones with other prompts."""
    import numpy as np

    from assay.policy import ModelOptions, load_policy
    from assay.rollouts.build import build_engine
    from assay.rollouts.options import RolloutOptions
    from assay.rollouts.protocol import Request, Sampling, generate
    from assay.rollouts.vllm_options import VllmOptions

    policy = load_policy(ModelOptions(path=options.model, dtype=options.dtype, lora=True), seed=0)
    rollout = RolloutOptions(
        engine="transformers" if options.worker == "transformers" else "vllm",
        vllm=VllmOptions(adapters=options.worker != "vllm merged", max_model_len=2048),
    )
    engine = build_engine(policy, [], rollout)
    random = np.random.default_rng(0)
    written = spent = waited = 0.0
    for turn in range(4):
        requests = [
            Request(
                tuple(random.integers(100, 10000, options.prompt_tokens).tolist()),
                Sampling(options.tokens),
                options.group,
                seed=turn * 100 + number,
            )
            for number in range(options.prompts)
        ]
        cpu, wall = cpu_seconds(), time.monotonic()
        results = generate(engine, requests)
        if turn:
            spent += cpu_seconds() - cpu
            waited += time.monotonic() - wall
            written += sum(len(item.segments[0]) for group in results for item in group)
    cpu = cpu_seconds()
    engine.push(policy.named_full_weights(), 1)
    push = cpu_seconds() - cpu
    print(
        json.dumps(
            {
                "per_cpu_second": round(written / spent, 1),
                "per_second": round(written / waited, 1),
                "tokens": written,
                "push_cpu_seconds": round(push, 2),
                "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
            }
        )
    )


def cpu_seconds() -> float:
    return time.process_time()


if __name__ == "__main__":
    main()
