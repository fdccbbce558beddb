"""How far vLLM's probabilities are from the trainer's, and how much of a batch each kind of importance weight keeps.

    VENV/bin/python benchmarks/mismatch.py --model smollm2 --dtype bfloat16      # an environment with vLLM

Samples completions with vLLM, scores the same tokens with the policy, and draws sequences of several lengths from the
token differences (independently) to find the effective sample size of the weights: (sum w)^2 / (n sum w^2).
"""

from __future__ import annotations

import argparse
import os

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    found = differences(options)
    size = np.abs(found)
    print(f"{options.model}, both in {options.dtype}, {len(found)} tokens; difference of log-probs in nats:")
    print(f"size {size.mean():.2g} on average, largest {size.max():.2g}; standard deviation {found.std():.2g}")
    print("length  whole-sequence product  token weights (capped at 2)  geometric mean")
    random = np.random.default_rng(0)
    token_weights = np.minimum(np.exp(found), 2.0)
    for length in (64, 256, 1024, 4096):
        totals = np.array([random.choice(found, length).sum() for _ in range(4000)])
        shares = (kept(np.exp(totals)), kept(token_weights), kept(np.exp(totals / length)))
        print(f"{length:6d}  {shares[0]:22.3f}  {shares[1]:27.4f}  {shares[2]:14.4f}")


def kept(weights: np.ndarray) -> float:
    """The effective sample size as a share of the sample."""
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


def differences(options: argparse.Namespace) -> np.ndarray:
    """Trainer's minus engine's log-prob of each sampled token."""
    import torch

    from assay.policy import ModelOptions, ScoringBatch, load_policy, load_tokenizer
    from assay.rollouts.build import build_engine
    from assay.rollouts.options import RolloutOptions
    from assay.rollouts.protocol import Request, Sampling, generate
    from assay.rollouts.vllm_options import VllmOptions

    model = ModelOptions(path=options.model, dtype=options.dtype)
    policy = load_policy(model)
    rollout = RolloutOptions(engine="vllm", vllm=VllmOptions(max_model_len=1024))
    engine = build_engine(policy, [], rollout)
    chat = [{"role": "user", "content": "Tell me a short story about a ship and the sea."}]
    prompt = tuple(load_tokenizer(model).apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    (group,) = generate(engine, [Request(prompt, Sampling(options.tokens), options.rows, seed=1)])
    rows = tuple(item.segments[0].token_ids for item in group)
    policy.eval()
    with torch.no_grad():
        logps = policy(ScoringBatch((np.array(prompt),), rows, (0,) * len(rows))).logps.float().numpy()
    return np.concatenate([logps[i, : len(row)] - group[i].segments[0].sampling_logps for i, row in enumerate(rows)])


if __name__ == "__main__":
    main()
