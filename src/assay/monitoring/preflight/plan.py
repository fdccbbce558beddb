"""What a run will cost, and practitioners' warnings about its plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from assay.monitoring.preflight.evidence import Evidence

GIB = 2**30
FEW_PROMPTS, FEW_STEPS = 500, 300
# (lowest, highest) learning rate that is usual; LoRA wants about ten times that of full fine-tuning.
USUAL_RATES = {True: (1e-6, 2e-4), False: (1e-7, 1e-5)}


@dataclass(frozen=True)
class Estimate:
    """None where the model's size or the speed was not measured. Memory by what takes it; one process."""

    hours: float | None
    seconds_per_step: float | None
    memory_gib: dict[str, float] | None
    disk_gib: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimate(evidence: Evidence) -> Estimate:
    """From measured times, the model's size and the configuration; activations are a rule of thumb."""
    facts = evidence.facts
    steps = int(facts.get("train.steps") or facts.get("steps") or 0)
    parts = [evidence.seconds.get(name) for name in ("generate_per_step", "score_per_step", "train_per_step")]
    per_step = sum(part for part in parts if part is not None) if any(parts) else None
    return Estimate(
        None if per_step is None else per_step * steps / 3600, per_step, memory_parts(evidence), disk_gib(evidence)
    )


def memory_parts(evidence: Evidence) -> dict[str, float] | None:
    """Weights of policy and engine, gradients and Adam's two moments, keys and values, one micro-batch of logits."""
    if evidence.parameters is None or evidence.trainable is None:
        return None
    facts = evidence.facts
    width = 2 if str(facts.get("dtype")) in ("bfloat16", "bf16", "float16", "fp16") else 4
    lora = bool(facts.get("lora"))
    # With adapters the engine shares the frozen weights; without, it has its own, and beta needs a reference as well.
    copies = 1 if lora else 2 + bool(facts.get("beta"))
    tokens = int(facts.get("token_budget") or 8192)
    return {
        "weights": evidence.parameters * width * copies / GIB,
        "gradients and optimiser": evidence.trainable * (4 + 8) / GIB,
        "keys and values": float(facts.get("kv_cache_gib") or 0),
        # Log-probs are computed in chunks: about a sixteenth of the logits in fp32, twice for the backward pass.
        "logits": tokens / 16 * (evidence.vocabulary or 0) * 4 * 2 / GIB,
        "activations": tokens * float(np.sqrt(evidence.parameters)) * 40 / GIB,
    }


def disk_gib(evidence: Evidence) -> float | None:
    """Checkpoints kept and one in the making, best and last model, and compressed rollouts."""
    if evidence.parameters is None or evidence.trainable is None:
        return None
    facts = evidence.facts
    checkpoint = evidence.trainable * (4 + 8)
    kept = int(facts.get("keep_checkpoints") or 1) + 1
    models = 2 * (evidence.trainable if facts.get("lora") else evidence.parameters) * 4
    tokens = float(np.mean([item.num_tokens for item in evidence.completions()])) if evidence.groups else 0.0
    completions = int(facts.get("train.steps") or facts.get("steps") or 0) * int(facts.get("prompts_per_step") or 1)
    completions *= int(facts.get("num_generations") or 1)
    return (checkpoint * kept + models + completions * (tokens * 8 + 300)) / GIB


def plan_warnings(evidence: Evidence) -> list[tuple[str, str]]:
    """(what is unusual, the key) for data, steps, temperature and learning rate."""
    facts = evidence.facts
    remarks = []
    if len(evidence.train) < FEW_PROMPTS:
        remarks.append((f"{len(evidence.train)} prompts; {FEW_PROMPTS} or more are usual", "data.train_size"))
    steps = int(facts.get("train.steps") or facts.get("steps") or 0)
    if 0 < steps < FEW_STEPS:
        remarks.append((f"{steps} steps; reward often needs {FEW_STEPS} to rise on a small model", "train.steps"))
    temperature = float(facts.get("temperature") or 1.0)
    if 0.7 <= temperature < 1.0:
        remarks.append(
            (
                f"temperature {temperature}; 1.0 keeps the sampler's and the trainer's distribution equal",
                "rollout.temperature",
            )
        )
    rate, lora = facts.get("learning_rate"), bool(facts.get("lora"))
    if isinstance(rate, (int, float)):
        low, high = USUAL_RATES[lora]
        if not low <= rate <= high:
            way = "LoRA" if lora else "full fine-tuning"
            remarks.append((f"learning rate {rate:g}; {low:g} to {high:g} is usual for {way}", "train.learning_rate"))
    return remarks
