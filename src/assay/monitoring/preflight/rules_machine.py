"""PF09 to PF18: would the machinery carry it: numerics, memory, weights, disk, speed, and the plan itself?"""

from __future__ import annotations

import os

import numpy as np

from assay.monitoring.preflight.evidence import Evidence, Found, Missing
from assay.monitoring.preflight.plan import estimate, plan_warnings
from assay.monitoring.preflight.register import rule


@rule("PF09", "sampler and trainer agree")
def parity(evidence: Evidence) -> Found | str:
    trained = evidence.need("trainer_logps", "the trainer's log-probs")
    gaps, ratios = [], []
    for item, own in zip(evidence.completions(), trained):
        sampled = np.concatenate([part.sampling_logps[part.loss_mask] for part in item.segments])
        known = np.isfinite(sampled) & np.isfinite(own)
        gaps.append(np.abs(own - sampled)[known])
        ratios.append(np.exp(own - sampled)[known])
    gap, ratio = float(np.concatenate(gaps).mean()), float(np.concatenate(ratios).mean())
    shown = f"mean log-prob gap {gap:.2g} nats, mean ratio {ratio:.4f} over {sum(map(len, gaps))} tokens"
    if gap <= 0.02:
        return shown
    fix = "same dtype on both sides, an fp32 LM head"
    if 0.5 < ratio < 0.97:
        fix = "the sampler truncates its distribution: top_p 1, top_k 0, min_p 0"
    return ("error" if gap > 0.1 else "warning", shown, fix, "model.fp32_lm_head")


@rule("PF10", "two dry updates")
def dry_update(evidence: Evidence) -> Found | str:
    found = evidence.need("dry_update", "a dry update")
    shown = (
        f"gradient norms {found['grad_norm']:.3g} and {found['second_grad_norm']:.3g}, "
        f"kl to the reference {found['reference_kl']:.2g} nats"
    )
    if not found["finite"]:
        return ("error", f"loss or gradient is not finite; {shown}", "another dtype or attention kernel", "model.dtype")
    if found["grad_norm"] == 0 or not found["changed"]:
        return (
            "error",
            f"no parameter moved; {shown}",
            "the adapter or the model is frozen: check LoRA's targets",
            "model.lora_targets",
        )
    if abs(found["reference_kl"]) > 1e-3:
        return (
            "error",
            f"policy and reference differ before training; {shown}",
            "the adapter does not start at zero",
            "model.lora",
        )
    if not found["restored"]:
        return (
            "warning",
            f"the same weights do not give the same log-probs twice; {shown}",
            "dropout or a kernel that is not deterministic: a resumed run will not repeat this one to the bit",
            "model.attention",
        )
    return shown + "; undone to the last bit"


@rule("PF11", "prompts fit")
def prompt_lengths(evidence: Evidence) -> Found | str:
    lengths = [len(prompt.token_ids) for prompt in evidence.train]
    left_out = sum(source.too_long for source in getattr(evidence.pool_report, "sources", ()))
    room = (
        None if evidence.context is None else evidence.context - int(evidence.facts.get("max_completion_length") or 0)
    )
    if not lengths:
        raise Missing("needs prompts")
    shown = f"longest prompt {max(lengths)} tokens" + (f", room for {room}" if room is not None else "")
    if room is not None and max(lengths) > room:
        over = sum(length > room for length in lengths)
        return (
            "error",
            f"{over} prompts do not fit beside a completion; {shown}",
            "leave them out",
            "data.max_prompt_tokens",
        )
    if left_out:
        return (
            "warning",
            f"{left_out} prompts were too long and were left out; {shown}",
            "a model with more context",
            "data.max_prompt_tokens",
        )
    return shown


@rule("PF12", "sampling differs within groups")
def sampling(evidence: Evidence) -> Found | str:
    temperature = float(evidence.facts.get("temperature") or 0)
    if temperature < 0.7:
        return (
            "error",
            f"temperature is {temperature}",
            "1.0: differences within a group are the signal",
            "rollout.temperature",
        )
    groups = evidence.need("groups", "sampled completions")
    total = sum(len(group.completions) for group in groups)
    distinct = sum(len({item.segments[-1].token_ids.tobytes() for item in group.completions}) for group in groups)
    share = 1 - distinct / max(1, total)
    shown = f"temperature {temperature}; {share:.0%} of the completions repeat another of their group"
    if share <= 0.2:
        return shown
    return (
        "warning",
        shown,
        "raise the temperature, or harder prompts: the model is nearly certain",
        "rollout.temperature",
    )


@rule("PF13", "memory")
def memory(evidence: Evidence) -> Found | str:
    available = evidence.need("memory_bytes", "the size of the memory")
    needed = estimate(evidence).memory_gib
    if needed is None:
        raise Missing("needs the model's size")
    total = sum(needed.values())
    parts = ", ".join(f"{name} {size:.1f}" for name, size in needed.items())
    shown = f"about {total:.1f} of {available / 2**30:.1f} GiB ({parts})"
    if total <= 0.9 * available / 2**30:
        return shown
    return (
        "error",
        shown,
        "LoRA, a smaller token_budget, a shorter limit, gradient checkpointing",
        "train.token_budget",
    )


@rule("PF14", "weights reach the engine")
def sync(evidence: Evidence) -> Found | str:
    found = evidence.need("sync", "a trial push of weights")
    if "hangs" in found:
        return (
            "error",
            f"the trial push did not return within {found['hangs']:.0f} s",
            "look at the server's log: ports, the number of ranks, and who waits for whom",
            "rollout.engine",
        )
    seen = "changed" if found["arrived"] else "did not change"
    shown = f"a perturbed weight {seen} the engine's log-probs ({found['seconds']:.1f} s in all)"
    if not found["arrived"]:
        return ("error", shown, "the engine would sample from old weights for ever", "rollout.engine")
    if not found["restored"]:
        return (
            "error",
            shown + "; pushing the old weights did not restore them",
            "weights are lost on the way",
            "rollout.engine",
        )
    return shown


@rule("PF15", "checkpoints")
def checkpoints(evidence: Evidence) -> Found | str:
    free = evidence.need("free_disk_bytes", "the free disk space")
    found = evidence.need("checkpoint", "a trial checkpoint")
    needed = estimate(evidence).disk_gib
    if needed is None:
        raise Missing("needs the model's size")
    shown = f"about {needed:.2f} GiB for checkpoints, models and rollouts; {free / 2**30:.1f} GiB free"
    if needed * 2**30 > free:
        return ("error", shown, "keep fewer checkpoints, or another output_dir", "train.keep_checkpoints")
    lost = [name for name, same in found["same"].items() if not same]
    if lost:
        return (
            "error",
            f"a checkpoint that was saved and loaded came back with other {', '.join(lost)}",
            "a resumed run would be another run: look at the disk, or report it",
            "output_dir",
        )
    return (
        f"saved and loaded {found['bytes'] / 2**20:.1f} MiB in {found['seconds']:.2f} s: the same "
        f"{', '.join(found['same'])}; {shown}"
    )


@rule("PF16", "held-out prompts are held out")
def leakage(evidence: Evidence) -> Found | str:
    overlap = getattr(evidence.pool_report, "overlap", None)
    if overlap is None or not evidence.heldout:
        raise Missing("needs held-out prompts")
    keys = {prompt.content_key for prompt in evidence.train}
    identical = sum(prompt.content_key in keys for prompt in evidence.heldout)
    shown = (
        f"{identical} held-out prompts stand in the training data, {overlap.shared_passage} share a passage of 13 words"
    )
    pairs = "".join(
        f"; held-out {heldout!r} and training {train!r} share {passage!r}"
        for heldout, train, passage in overlap.examples
    )
    if identical:
        return ("error", shown + pairs, "split by problem, not by row", "data.on_overlap")
    if overlap.shared_passage > 0.1 * len(evidence.heldout):
        return ("warning", shown + pairs, "look at the examples; templates that repeat are harmless", "data.on_overlap")
    return shown


@rule("PF17", "the verifier keeps up")
def verifier_speed(evidence: Evidence) -> Found | str:
    audits = evidence.need("audits", "an audit of the verifiers")
    hung = evidence.need("endless", "a reward that hangs")
    if hung["outcome"] != "timeout" or hung["seconds"] > 10 * hung["limit"] + 60:
        return (
            "error",
            f"a reward that never returns was {hung['outcome']} after {hung['seconds']:.1f} s, with a limit of "
            f"{hung['limit']:g} s",
            "one endless answer would hold up the run",
            "rewards.sample_timeout_s",
        )
    generate = evidence.seconds.get("generate_per_step")
    if not generate:
        raise Missing("needs the time of generation")
    workers = max(1, int(evidence.facts.get("rewards.workers") or 0) or os.cpu_count() or 1)
    batch = int(evidence.facts.get("prompts_per_step") or 1) * int(evidence.facts.get("num_generations") or 1)
    scoring = sum(report.latency_p95 for report in audits) * batch / workers
    shown = (
        f"scoring a step takes up to about {scoring:.2f} s (p95 of {batch} answers on {workers} workers), "
        f"writing it {generate:.1f} s; a reward that hung was given up after {hung['seconds']:.1f} s (limit "
        f"{hung['limit']:g} s{', its process killed' if hung['isolation'] == 'process' else ''})"
    )
    if scoring <= 0.2 * generate:
        return shown
    return ("warning", shown, "more workers, or a shorter time limit an answer", "rewards.workers")


@rule("PF18", "the plan")
def plan(evidence: Evidence) -> Found | str:
    remarks = plan_warnings(evidence)
    if not remarks:
        return f"{len(evidence.train)} prompts, {evidence.facts.get('steps')} steps"
    return (
        "info",
        "; ".join(text for text, _ in remarks),
        "these are practitioners' rules of thumb, not limits",
        remarks[0][1],
    )
