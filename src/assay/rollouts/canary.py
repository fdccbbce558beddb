"""The weight canary: proof at the start of a run that weights which are pushed are the weights that write.

One optimiser step moves log-probs less than a half-precision engine's rounding, so a sync that does nothing would not
be seen in training for a long time. Here a perturbation is pushed that is far larger than any rounding; the engine's
log-probs of one sequence must be the trainer's with the perturbed weights, and again with the true ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from assay.errors import RunError
from assay.policy import Policy, ScoringBatch
from assay.ranks import Ranks
from assay.rollouts.vllm_weights import Weights

# Largest mean |difference| of log-probs (nats) that rounding explains, by the coarser of the two precisions. Measured
# on SmolLM2-135M: float32 5e-6, bfloat16 0.03 (docs/engines.md).
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15, "float16": 0.05}
# The perturbation must move log-probs by so many tolerances, and by so many nats.
CONTRAST, LEAST_MOVE = 8.0, 0.5
PROBE_TOKENS = 48
MAX_DOUBLINGS = 14


@runtime_checkable
class Provable(Protocol):
    """An engine that scores a given sequence, by name (each server its own): [T - 1] log-probs at temperature 1."""

    dtype: torch.dtype

    def probe(self, token_ids: Iterable[int]) -> list[tuple[str, np.ndarray]]: ...

    def push(self, weights: Weights, version: int) -> None: ...


@dataclass(frozen=True)
class Proof:
    """Mean |engine - trainer| (nats) with the perturbed and with the true weights, and how far the two lie apart."""

    perturbed: float
    restored: float
    moved: float


def prove(engine: object, policy: Policy, ranks: Ranks) -> Proof:
    """Push a large perturbation and the true weights again; leaves policy and engine as they were (as version 0).

    Raises:
        RunError: with numbers, if the engine does not follow.
    """
    assert isinstance(engine, Provable)
    tokens = probe_tokens(int(policy.config.vocab_size))
    true = trainer_logps(policy, tokens)
    tolerance = max(TOLERANCE[name] for name in precisions(engine, policy))
    with perturbed(policy, tokens, true, least=max(LEAST_MOVE, CONTRAST * tolerance)) as moved:
        engine.push(policy.named_full_weights(), -1)
        first = follow(engine, tokens, moved, true, tolerance, "a large test change of the weights", ranks)
    engine.push(policy.named_full_weights(), 0)
    second = follow(engine, tokens, true, moved, tolerance, "the true weights after a test change", ranks)
    return Proof(first, second, distance(moved, true))


def precisions(engine: Provable, policy: Policy) -> set[str]:
    return {str(engine.dtype).removeprefix("torch."), policy.choices["dtype"]}


def probe_tokens(vocab_size: int) -> list[int]:
    """The same random tokens in every run."""
    return [int(token) for token in np.random.default_rng(20240).integers(0, vocab_size, PROBE_TOKENS)]


@torch.no_grad()
def trainer_logps(policy: Policy, tokens: list[int]) -> np.ndarray:
    """[T - 1] log-probs of the tokens from the second on, by the trainer's own forward pass."""
    was_training = policy.training
    policy.eval()
    array = np.array(tokens, dtype=np.int64)
    logps = policy(ScoringBatch((array[:1],), (array[1:],), (0,))).logps[0]
    policy.train(was_training)
    return logps.float().cpu().numpy()


@contextmanager
def perturbed(policy: Policy, tokens: list[int], true: np.ndarray, least: float) -> Iterator[np.ndarray]:
    """The policy with noise on all that it learns, large enough to move its log-probs by `least` nats on average.

    Yields the log-probs it then has; the exact weights come back afterwards.
    """
    learned = [parameter for parameter in policy.transformer.parameters() if parameter.requires_grad]
    kept = [parameter.detach().clone() for parameter in learned]
    generator = torch.Generator().manual_seed(20240)
    noise = [torch.randn(parameter.shape, generator=generator).to(parameter) for parameter in learned]
    # A fresh adapter's second matrix is zero, so its scale comes from the widths.
    scales = [float(old.float().std()) if old.numel() > 1 else 0.0 for old in kept]
    scales = [scale or 1.0 / max(old.shape) ** 0.5 for scale, old in zip(scales, kept, strict=True)]
    try:
        strength = 1 / 64
        for _ in range(MAX_DOUBLINGS):
            with torch.no_grad():
                for parameter, old, change, scale in zip(learned, kept, noise, scales, strict=True):
                    parameter.copy_(old + strength * scale * change)
            moved = trainer_logps(policy, tokens)
            if np.isfinite(moved).all() and distance(moved, true) >= least:
                break
            strength *= 2
        else:
            raise RunError(
                f"no test change of the weights moves this model's log-probs by {least:g} nats, so nothing can prove "
                "that weights reach the engine; use rollout.engine=transformers"
            )
        yield moved
    finally:
        with torch.no_grad():
            for parameter, old in zip(learned, kept, strict=True):
                parameter.copy_(old)


def follow(
    engine: Provable,
    tokens: list[int],
    new: np.ndarray,
    old: np.ndarray,
    tolerance: float,
    what: str,
    ranks: Ranks,
) -> float:
    """The largest mean |difference| of any server's log-probs to `new`.

    Raises:
        RunError: if one is further from `new` than rounding explains.
    """
    # One rank asks: vLLM's CPU build cannot score two prompts at a time with an adapter.
    probes = ranks.broadcast(engine.probe(tokens) if ranks.is_main else [])
    for name, logps in probes:
        off = distance(logps, new)
        if not off <= tolerance:
            raise RunError(
                f"{name} does not follow {what}: its log-probs are {off:.3g} nats a token away from the trainer's (up "
                f"to {tolerance:g} would be rounding) and {distance(logps, old):.3g} away from those before the push; "
                f"the two lie {distance(new, old):.3g} apart. It would write with other weights than the trained ones; "
                "use rollout.engine=transformers, or another version of vLLM (docs/engines.md)"
            )
    return max(distance(logps, new) for _, logps in probes)


def distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).mean())
