"""What a run will cost, and practitioners' warnings about its plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from assay.monitoring.preflight.evidence import Evidence

GIB = 2**30
FEW_PROMPTS, FEW_STEPS = 500, 300
# What backward holds beside the kept activations while it runs; measured on SmolLM2 in float32 and bfloat16.
BACKWARD_SLACK = 1.2
# Three arrays of a chunk of logits (assay.policy.head).
HEAD_BYTES = 3 * 24 * 2**20
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
    """From measured times and bytes, and the configuration."""
    facts = evidence.facts
    steps = int(facts.get("train.steps") or facts.get("steps") or 0)
    parts = [evidence.seconds.get(name) for name in ("generate_per_step", "score_per_step", "train_per_step")]
    per_step = sum(part for part in parts if part is not None) if any(parts) else None
    return Estimate(
        None if per_step is None else per_step * steps / 3600, per_step, memory_parts(evidence), disk_gib(evidence)
    )


def memory_parts(evidence: Evidence) -> dict[str, float] | None:
    """What is loaded, the optimiser's moments, and the larger of writing and training; the process's peak in GiB."""
    measured, facts = evidence.footprint, evidence.facts
    if measured is None or evidence.trainable is None or not evidence.groups:
        return None
    generations, prompts = int(facts.get("num_generations") or 1), int(facts.get("prompts_per_step") or 1)
    prompt = float(np.mean([len(group.prompt.token_ids) for group in evidence.groups]))
    written = float(np.mean([item.num_tokens for item in evidence.completions()]))
    in_round = prompts * int(facts.get("steps_per_generation") or 1)
    limit = int(facts.get("max_completion_length") or written)
    caches = in_round * (prompt + generations * limit) * measured["cache_per_token"]
    caches = min(caches, float(facts.get("kv_cache_gib") or 0) * GIB or caches)
    # Logits, their exponentials and a temporary, in float32.
    drawing = in_round * generations * (evidence.vocabulary or 0) * 4 * 3
    tokens = min(int(facts.get("token_budget") or 8192), prompts * (prompt + generations * written))
    kept = tokens * measured["kept_per_token"] + measured["kept_anyway"]
    written_tokens = in_round * (prompt + generations * written)
    outputs = min(written_tokens * measured["outputs_per_token"], float(facts.get("keep_outputs_gib") or 0) * GIB)
    # Gradients appear as activations go.
    busy = max(BACKWARD_SLACK * kept, evidence.trainable * 4)
    phases = ({"keys and values": caches, "logits": drawing}, {"activations and gradients": busy, "logits": HEAD_BYTES})
    parts = {
        "weights, engine and libraries": measured["loaded"],
        "layer outputs for the update": outputs,
        "optimiser": evidence.trainable * (2 if "8bit" in str(facts.get("optimizer")) else 8),
        **max(phases, key=lambda phase: sum(phase.values())),
    }
    return {name: size / GIB for name, size in parts.items()}


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
