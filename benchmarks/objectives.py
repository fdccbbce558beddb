"""What an objective costs beside the model: loss and gradient on [rows x tokens] against a forward pass.

    python benchmarks/objectives.py [--rows 256] [--tokens 4096] [--repeats 3]

The model is a random Llama of SmolLM2-135M's shape, timed on one short sequence and scaled to the same number of
tokens (attention's growth with length is left out, which favours the model). Each repeat times both, so that a busy
machine slows both; the ratio of the medians is what counts. Exit status 1 if an objective costs 2% or more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from assay.objectives import Denominators, PolicyOutputs, Rows, build, preset

PRESETS = ("grpo", "dapo", "gspo", "cispo", "sapo", "gmpo", "vespo", "deepseek_r1", "eighty_twenty", "ppo")
LIMIT = 0.02
MODEL_TOKENS = 256


def model(device: str) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(device).eval()


def seconds(function, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def objective_pass(name: str, rows: int, tokens: int, device: str):
    """A callable that computes loss and gradient of a preset with every tensor that it may want."""
    lengths = torch.randint(tokens // 4, tokens + 1, (rows,))
    mask = (torch.arange(tokens) < lengths.unsqueeze(1)).to(device)
    logps = -torch.rand(rows, tokens, device=device)

    def near() -> torch.Tensor:
        return logps + 0.1 * torch.randn(rows, tokens, device=device)

    group = torch.arange(rows, device=device) // 8
    objective = build(preset(name))
    sums = objective.measure(mask, group, torch.zeros(rows, dtype=torch.bool, device=device))
    denominators = Denominators.from_sums(sums, max_completion_length=tokens)
    advantages = torch.randn(rows, device=device)
    batch = Rows(mask, advantages, near(), near(), near(), near(), near())
    entropies, values = torch.rand(rows, tokens, device=device), near().requires_grad_()

    def run() -> None:
        leaf = logps.clone().requires_grad_()
        loss, metrics = objective(PolicyOutputs(leaf, entropies, values), batch, denominators)
        loss.backward()
        metrics.values()

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    network, ids = model(options.device), torch.randint(0, 49152, (1, MODEL_TOKENS), device=options.device)
    passes = {name: objective_pass(name, options.rows, options.tokens, options.device) for name in PRESETS}
    scale = options.rows * options.tokens / MODEL_TOKENS
    times: dict[str, list[float]] = {name: [] for name in ("model", *PRESETS)}
    with torch.no_grad():
        network(ids)
    for _ in range(options.repeats):
        with torch.no_grad():
            times["model"].append(seconds(lambda: network(ids), options.device) * scale)
        for name, run in passes.items():
            times[name].append(seconds(run, options.device))
    forward = statistics.median(times["model"])
    print(f"[{options.rows} x {options.tokens}] on {options.device}; model forward {forward:.1f} s (scaled)")
    worst = 0.0
    for name in PRESETS:
        ratio = statistics.median(times[name]) / forward
        worst = max(worst, ratio)
        print(f"{name:<14} {statistics.median(times[name]):8.3f} s  {ratio:8.4%} of a forward pass")
    print(f"worst {worst:.4%}, limit {LIMIT:.0%}")
    return int(worst >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
