"""PF01 to PF18. A rule returns what it found (severity, evidence, fix, key), or the evidence of being clear, or raises
`Missing`."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from assay.monitoring.doctor.statistics import wilson
from assay.monitoring.preflight.evidence import (
    CLEAR,
    FIRED,
    NOT_CHECKABLE,
    Check,
    Evidence,
    Found,
    Missing,
    Report,
    Rule,
)
from assay.monitoring.preflight.plan import estimate, plan_warnings
from assay.records import Finish

RULES: dict[str, tuple[str, Rule]] = {}


def rule(id: str, title: str) -> Callable[[Rule], Rule]:
    def register(check: Rule) -> Rule:
        RULES[id] = (title, check)
        return check

    return register


def preflight(evidence: Evidence) -> Report:
    """Every rule fired, clear or not checkable, and the estimate of time, memory and disk."""
    checks = []
    for id, (title, check) in RULES.items():
        try:
            found = check(evidence)
        except Missing as missing:
            checks.append(Check(id, title, NOT_CHECKABLE, str(missing)))
        else:
            if isinstance(found, str):
                checks.append(Check(id, title, CLEAR, found))
            else:
                severity, shown, fix, key = found
                checks.append(Check(id, title, FIRED, shown, severity, fix, key))
    return Report(checks, estimate(evidence).to_json())


@rule("PF01", "gold parses")
def gold_parses(evidence: Evidence) -> Found | str:
    audits = evidence.need("audits", "an audit of the verifiers")
    bad = [report for report in audits if report.unreadable]
    if not bad:
        return f"every gold answer of {max((report.rows for report in audits), default=0)} rows was readable"
    worst = max(bad, key=lambda report: report.unreadable / max(1, report.rows))
    share = worst.unreadable / worst.rows
    shown = "; ".join(f"row {item.row}: {item.gold[:60]!r}" for item in worst.offences[:3])
    return (
        "error" if share > 0.01 else "warning",
        f"`{worst.verifier}` cannot read {worst.unreadable} of {worst.rows} gold answers ({share:.0%}): {shown}",
        "name the column with the final answer, not the rationale",
        "data.fields.gold",
    )


@rule("PF02", "gold earns full reward through the model's own format and tokenizer")
def gold_paid(evidence: Evidence) -> Found | str:
    audits = evidence.need("audits", "an audit of the verifiers")
    judged = [report for report in audits if report.gold_paid + report.false_negatives]
    bad = [report for report in judged if not report.pays_for_gold or report.failures]
    if not judged:
        raise Missing("needs a verifier that judges gold")
    if not bad:
        shares = (f"{item.verifier}: {item.gold_paid} of {item.gold_paid + item.false_negatives}" for item in judged)
        return "; ".join(shares)
    worst = min(bad, key=lambda report: report.gold_paid)
    shown = "; ".join(f"{item.text[-80:]!r} gave {item.outcome}" for item in worst.offences[:2])
    return (
        "error",
        f"`{worst.verifier}` pays {worst.gold_paid} of {worst.gold_paid + worst.false_negatives} gold answers"
        + (f", and failed on {worst.failures}" if worst.failures else "") + f": {shown}",
        "make parser and answer format agree; `assay audit` shows every text",
        "rewards.functions",
    )  # fmt: skip


@rule("PF03", "prompt template")
def template(evidence: Evidence) -> Found | str:
    tokenizer = evidence.need("tokenizer", "a tokenizer")
    if not evidence.train:
        raise Missing("needs prompts")
    ids = list(evidence.train[0].token_ids)
    tail = tokenizer.decode(ids[-40:])
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        return (
            "error",
            f"the prompt begins with two BOS tokens ({bos})",
            "the template adds one already",
            "data.format",
        )
    if tail.rstrip().endswith("</think>"):
        return (
            "info", f"the prompt ends with an empty think block: ...{tail[-60:]!r}",
            "thinking is off; a reward for think tags cannot be earned", "data.template_options",
        )  # fmt: skip
    if tail.rstrip().endswith("<think>"):
        return (
            "warning", f"the prompt already opens <think>: ...{tail[-60:]!r}",
            "the completion never contains the opening tag: make it optional in the format reward", "rewards.functions",
        )  # fmt: skip
    return f"ends with {tail[-60:]!r}"


@rule("PF04", "nothing but answers is paid")
def negative_controls(evidence: Evidence) -> Found | str:
    audits = evidence.need("audits", "an audit of the verifiers")
    bad = [report for report in audits if report.false_positives]
    tried = sum(sum(report.tried.values()) for report in audits)
    if not tried:
        raise Missing("needs a verifier on which attacks can be tried")
    if not bad:
        return f"none of {tried} non-answers was paid"
    worst = max(bad, key=lambda report: report.false_positives)
    attacks = ", ".join(f"{name} {count} of {worst.tried[name]}" for name, count in worst.paid.items() if count)
    return (
        "error", f"`{worst.verifier}` pays for non-answers: {attacks}",
        "close the hole before the policy finds it; `assay audit` shows the texts", "rewards.functions",
    )  # fmt: skip


@rule("PF05", "answers fit the limit")
def truncation(evidence: Evidence) -> Found | str:
    rows = evidence.completions()
    rate = wilson(sum(item.finish is Finish.LENGTH for item in rows), len(rows))
    ended = [item.num_tokens for item in rows if item.finish is Finish.STOP]
    cap = evidence.facts.get("max_completion_length")
    quantiles = np.quantile(ended, (0.5, 0.9, 0.95)) if ended else None
    lengths = "no completion ended by itself" if quantiles is None else (
        f"finished ones: median {quantiles[0]:.0f}, p90 {quantiles[1]:.0f}, p95 {quantiles[2]:.0f} tokens"
        + (" (too low: the long ones are cut off)" if rate.value > 0.1 else "")
    )  # fmt: skip
    shown = f"{rate} end at the limit of {cap} tokens; {lengths}"
    if rate.low <= 0.10:
        return shown
    return (
        "error" if rate.low > 0.30 else "warning", shown,
        "raise max_completion_length to about 1.3 times the 95th percentile", "rollout.max_completion_length",
    )  # fmt: skip


@rule("PF06", "groups that teach")
def signal(evidence: Evidence) -> Found | str:
    groups = evidence.need("groups", "sampled completions")
    counts = [
        (sum(bool(item.correct) for item in group.completions if item.correct is not None),
         sum(item.correct is not None for item in group.completions))
        for group in groups
    ]  # fmt: skip
    counts = [(right, judged) for right, judged in counts if judged]
    if not counts:
        raise Missing("needs verdicts on the sampled completions")
    size = int(evidence.facts.get("num_generations") or 8)
    mixed = mixed_share(counts, size)
    none = sum(right == 0 for right, _ in counts) / len(counts)
    all_ = sum(right == judged for right, judged in counts) / len(counts)
    graded = any(len({item.reward for item in group.completions}) > 1 for group in groups) and mixed < 0.2
    by_size = ", ".join(f"G={g}: {mixed_share(counts, g):.0%}" for g in (4, 8, 16, 32))
    shown = (
        f"about {mixed:.0%} of the groups will be mixed at G={size} ({by_size}); of {len(counts)} sampled prompts "
        f"{none:.0%} were never solved, {all_:.0%} always"
    )
    if mixed >= 0.2:
        return shown
    if graded:
        return ("info", shown + "; partial rewards still differ within groups", "none is needed", "")
    easier = "easier prompts (`assay filter`), SFT first, or a larger G"
    fix = "drop prompts that are always solved" if all_ > none else easier
    return ("error" if mixed < 0.05 else "warning", shown, fix, "rollout.num_generations")


def mixed_share(counts: list[tuple[int, int]], size: int) -> float:
    """Expected share of mixed groups of `size`, given (right, judged) of a few prompts.

    Each prompt's rate has a Beta prior of weight one around the pooled rate, so that "0 of 8" of a hopeless pool stays
    hopeless while "0 of 8" beside solved prompts does not. E[p^G] under Beta(a, b) = prod (a + i)/(a + b + i), i < G.

    >>> round(mixed_share([(4, 8)], 8), 2), mixed_share([(0, 8)] * 8, 8) < 0.05
    (0.95, True)
    """
    pooled = (sum(right for right, _ in counts) + 0.5) / (sum(judged for _, judged in counts) + 1)
    steps = np.arange(size)
    shares = []
    for right, judged in counts:
        a, b = right + pooled, judged - right + 1 - pooled
        shares.append(1 - np.prod((a + steps) / (a + b + steps)) - np.prod((b + steps) / (a + b + steps)))
    return float(np.mean(shares))


@rule("PF07", "ends of completions")
def endings(evidence: Evidence) -> Found | str:
    stops = evidence.need("stop_token_ids", "the stop token ids")
    ended = [item for item in evidence.completions() if item.finish is Finish.STOP and item.num_tokens]
    strange = [item for item in ended if int(item.segments[-1].token_ids[-1]) not in stops]
    if strange:
        last = int(strange[0].segments[-1].token_ids[-1])
        return (
            "error", f"{len(strange)} of {len(ended)} finished completions end in no stop token (one ends in {last})",
            "the end of a turn would never be trained; add the template's turn end to the stop ids", "model.path",
        )  # fmt: skip
    if not ended:
        return (
            "warning", f"no sampled completion ended in a stop token ({sorted(stops)})",
            "the turn's end may be another token, or the limit too low", "rollout.max_completion_length",
        )  # fmt: skip
    return f"all {len(ended)} finished completions end in one of {sorted(stops)}"


@rule("PF08", "tokens survive decoding and encoding")
def round_trip(evidence: Evidence) -> Found | str:
    tokenizer = evidence.need("tokenizer", "a tokenizer")
    rows = [item for item in evidence.completions() if item.num_tokens]
    changed = 0
    for item in rows:
        ids = [int(token) for token in item.segments[-1].token_ids]
        changed += tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids
    shown = f"{changed} of {len(rows)} completions change when decoded and encoded again"
    if not changed:
        return shown
    return (
        "info",
        shown,
        "harmless here: training uses the sampled ids; other tools must not tokenise the text again",
        "",
    )


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


@rule("PF10", "a dry update")
def dry_update(evidence: Evidence) -> Found | str:
    found = evidence.need("dry_update", "a dry update")
    shown = f"gradient norm {found['grad_norm']:.3g}, kl to the reference {found['reference_kl']:.2g} nats"
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
    return shown


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


@rule("PF15", "room for checkpoints")
def disk(evidence: Evidence) -> Found | str:
    free = evidence.need("free_disk_bytes", "the free disk space")
    needed = estimate(evidence).disk_gib
    if needed is None:
        raise Missing("needs the model's size")
    shown = f"about {needed:.2f} GiB for checkpoints, models and rollouts; {free / 2**30:.1f} GiB free"
    if needed * 2**30 <= free:
        return shown
    return ("error", shown, "keep fewer checkpoints, or another output_dir", "train.keep_checkpoints")


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
    if identical:
        return ("error", shown, "split by problem, not by row", "data.on_overlap")
    if overlap.shared_passage > 0.1 * len(evidence.heldout):
        return ("warning", shown, "look at the examples; templates that repeat are harmless", "data.on_overlap")
    return shown


@rule("PF17", "the verifier keeps up")
def verifier_speed(evidence: Evidence) -> Found | str:
    audits = evidence.need("audits", "an audit of the verifiers")
    generate = evidence.seconds.get("generate_per_step")
    if not generate:
        raise Missing("needs the time of generation")
    workers = max(1, int(evidence.facts.get("rewards.workers") or 0) or os.cpu_count() or 1)
    batch = int(evidence.facts.get("prompts_per_step") or 1) * int(evidence.facts.get("num_generations") or 1)
    scoring = sum(report.latency_p95 for report in audits) * batch / workers
    shown = (
        f"scoring a step takes up to about {scoring:.2f} s (p95 of {batch} answers on {workers} workers), "
        f"writing it {generate:.1f} s"
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
