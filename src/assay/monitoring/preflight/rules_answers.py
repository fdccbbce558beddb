"""PF01 to PF08: would the verifier, the template and the sampled answers give the policy something to learn from?

A rule returns what it found (severity, evidence, fix, key), or the evidence of being clear, or raises `Missing`.
"""

from __future__ import annotations

import numpy as np

from assay.monitoring.doctor.statistics import wilson
from assay.monitoring.preflight.evidence import Evidence, Found, Missing
from assay.monitoring.preflight.register import rule
from assay.records import Finish, Outcome


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
    # The finished ones are the short ones: how long the others would have been nobody knows yet.
    fix = f"double it (to {2 * int(cap)}) and check again" if cap else "raise it until few answers are cut off"
    return ("error" if rate.low > 0.30 else "warning", shown, fix, "rollout.max_completion_length")


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
    if size == 1:
        raise Missing("needs several completions a prompt")
    if (unread := no_answer_found(evidence)) is not None:
        return unread
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


def no_answer_found(evidence: Evidence) -> Found | None:
    """Where the verifier finds no answer in most whole completions, that is why no group differs."""
    whole = [item for item in evidence.completions() if item.finish is Finish.STOP]
    unread = [
        (name, judgement, item)
        for item in whole
        for name, judgement in item.judgements.items()
        if judgement.outcome is Outcome.UNPARSABLE
    ]
    if not whole or len({id(item) for _, _, item in unread}) <= len(whole) / 2:
        return None
    name, judgement, item = unread[0]
    shown = f"{judgement.detail or 'unparsable'}: {item.text.strip()[-80:]!r}"
    return (
        "error",
        f"`{name}` finds no answer in {len(unread)} of {len(whole)} whole completions ({shown})",
        "ask in data.system_prompt for the form that it reads (such as \\boxed{}), or take a verifier that reads this",
        "data.system_prompt",
    )


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
