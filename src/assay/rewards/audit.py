"""Does a verifier pay for gold, and for nothing else? The proof before a run, on its rows and in its workers.

Gold, written in the verifier's own answer format and sent through the tokenizer, must earn full reward; every attack of
`attacks.py` must earn nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from assay.records import Judgement, Outcome
from assay.rewards.attacks import ATTACKS, ONCE, SHAPE_ONLY, material
from assay.rewards.options import RewardOptions
from assay.rewards.registry import RewardFunction, load_reward
from assay.rewards.rows import group_of_row
from assay.rewards.scorer import Scorer
from assay.rewards.verifier import Verifier

PAID_SHARE = 0.1
KEPT = 20


@dataclass
class Offence:
    """One text that was marked against what it deserves."""

    kind: str
    row: int
    gold: str
    text: str
    outcome: str
    reward: float | None
    detail: str = ""


@dataclass
class AuditReport:
    """What an audit found for one verifier.

    `false_negatives` counts golds that did not earn full reward, `unreadable` those whose gold could not be read (part
    of neither), `false_positives` non-answers that were paid, `tried` and `paid` them by attack. Latencies are
    seconds for one completion. `audited` is False for terms that no answer can test (length, language, a reward model
    or judge), which are passed over. `offences` keeps the first texts of each kind.
    """

    verifier: str
    rows: int
    audited: bool = True
    gold_paid: int = 0
    false_negatives: int = 0
    unreadable: int = 0
    not_applicable: int = 0
    failures: int = 0
    tried: dict[str, int] = field(default_factory=dict)
    paid: dict[str, int] = field(default_factory=dict)
    latency_p50: float = 0.0
    latency_p95: float = 0.0
    latency_p99: float = 0.0
    offences: list[Offence] = field(default_factory=list)

    @property
    def false_positives(self) -> int:
        return sum(self.paid.values())

    @property
    def pays_for_non_answers(self) -> bool:
        return self.false_positives > 0

    @property
    def pays_for_gold(self) -> bool:
        """At least 99 % of the readable golds earn full reward, and there is one."""
        judged = self.gold_paid + self.false_negatives
        return judged > 0 and self.gold_paid >= 0.99 * judged

    @property
    def ok(self) -> bool:
        return not self.audited or (self.pays_for_gold and not self.pays_for_non_answers and self.failures == 0)

    def as_dict(self) -> dict[str, Any]:
        verdicts = {"false_positives": self.false_positives, "ok": self.ok}
        return {**asdict(self), **verdicts, "pays_for_gold": self.pays_for_gold}

    def add(self, offence: Offence) -> None:
        if sum(other.kind == offence.kind for other in self.offences) < KEPT:
            self.offences.append(offence)


def audit(
    verifier: Any,
    rows: Sequence[Mapping[str, Any]],
    tokenizer: Any = None,
    attack_rows: int = 50,
    progress: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Audit one reward (a RewardSpec, name, callable or loaded RewardFunction) over dataset rows.

    Gold is tried on every row, attacks on the first `attack_rows`. With a `tokenizer`, gold texts go through encode and
    decode first. Raises InputError where the rows lack the verifier's column.
    """
    function = verifier if isinstance(verifier, RewardFunction) else load_reward(verifier)
    report = AuditReport(function.name, len(rows))
    if not getattr(function.fn, "auditable", True):
        report.audited, report.not_applicable = False, len(rows)
        return report
    seconds: list[float] = []
    scorer = Scorer([function.spec], RewardOptions(on_error="skip", sample_timeout_s=60.0))
    function = scorer.functions[0]
    try:
        check_gold(report, scorer, rows, tokenizer, seconds, progress)
        check_attacks(report, scorer, rows[:attack_rows], rows, seconds)
    finally:
        scorer.close()
    if seconds:
        percentiles = np.percentile(seconds, (50, 95, 99))
        report.latency_p50, report.latency_p95, report.latency_p99 = map(float, percentiles)
    return report


def check_gold(
    report: AuditReport,
    scorer: Scorer,
    rows: Sequence[Mapping[str, Any]],
    tokenizer: Any,
    seconds: list[float],
    progress: Callable[[int, int], None] | None,
) -> None:
    verifier = verifier_of(scorer.functions[0])
    for number, row in enumerate(rows):
        gold = gold_of(verifier, row)
        text = through(tokenizer, verifier.render_gold(gold, row) if verifier is not None else str(gold))
        judgement = mark(scorer, row, text, tokenizer, seconds)
        told = Offence(
            "gold", number, str(gold)[:500], text[:500], str(judgement.outcome), judgement.reward, judgement.detail
        )
        if judgement.outcome is Outcome.NOT_APPLICABLE:
            report.not_applicable += 1
        elif judgement.detail.startswith("gold unreadable"):
            report.unreadable += 1
            report.add(told)
        elif judgement.outcome in (Outcome.ERROR, Outcome.TIMEOUT):
            report.failures += 1
            report.add(told)
        elif earns_full(judgement):
            report.gold_paid += 1
        else:
            report.false_negatives += 1
            report.add(told)
        if progress is not None:
            progress(number + 1, len(rows))


def check_attacks(
    report: AuditReport,
    scorer: Scorer,
    attacked: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    seconds: list[float],
) -> None:
    verifier = verifier_of(scorer.functions[0])
    golds = list({str(gold_of(verifier, row)): gold_of(verifier, row) for row in rows[:200]}.values())
    attacks = attacks_for(verifier)
    for number, row in enumerate(attacked):
        gold = gold_of(verifier, row)
        if gold is None or not str(gold).strip():
            continue
        reference = mark(scorer, row, material(verifier, row, gold, ()).right, None, [])
        if not earns_full(reference):
            continue  # a row that does not pay for gold says nothing about attacks
        others = [other for other in golds[number : number + 4] if str(other) != str(gold)]
        stuff = material(verifier, row, gold, others)
        for name in attacks:
            if name in ONCE and number > 0:
                continue
            for text in ATTACKS[name](stuff):
                judgement = mark(scorer, row, text, None, seconds)
                report.tried[name] = report.tried.get(name, 0) + 1
                report.paid.setdefault(name, 0)
                if is_paid(judgement, reference, name):
                    report.paid[name] += 1
                    shown = text if len(text) <= 500 else text[:250] + " ... " + text[-250:]
                    report.add(
                        Offence(
                            name,
                            number,
                            str(gold)[:500],
                            shown,
                            str(judgement.outcome),
                            judgement.reward,
                            judgement.detail,
                        )
                    )


def verifier_of(function: RewardFunction) -> Verifier | None:
    """The verifier itself, or the one inside a term such as `cosine`."""
    inner = getattr(function.fn, "verifier", None)
    return function.verifier or (inner if isinstance(inner, Verifier) else None)


def attacks_for(verifier: Verifier | None) -> Sequence[str]:
    """A term without verdicts, or whose verdict is about the form, is not meant to tell right from wrong."""
    if verifier is not None and not verifier.gives_verdicts:
        return SHAPE_ONLY
    if verifier is not None and not verifier.checks_answer:
        return [name for name in ATTACKS if name not in ("wrong_gold", "several")]
    return list(ATTACKS)


def gold_of(verifier: Verifier | None, row: Mapping[str, Any]) -> Any:
    return verifier.gold_of(row) if verifier is not None else row.get("gold")


def earns_full(judgement: Judgement) -> bool:
    """Full reward: a correct verdict; a score above 0 where there are no verdicts."""
    if judgement.outcome is Outcome.SCORED:
        return judgement.reward is not None and judgement.reward > 0
    return judgement.outcome is Outcome.CORRECT


def is_paid(judgement: Judgement, reference: Judgement, attack: str) -> bool:
    """Whether a non-answer earned something: a correct verdict, or more than a tenth of what gold earned.

    Partial credit for another row's gold (`wrong_gold`, `several`) is what partial credit is for.
    """
    if judgement.outcome is Outcome.CORRECT:
        return True
    if judgement.reward is None or reference.reward is None:
        return False
    if attack in ("wrong_gold", "several") and judgement.outcome is not Outcome.SCORED:
        return False
    threshold = reference.reward if attack in ("wrong_gold", "several") else PAID_SHARE * abs(reference.reward)
    return judgement.reward > 0 and judgement.reward >= threshold


def mark(scorer: Scorer, row: Mapping[str, Any], text: str, tokenizer: Any, seconds: list[float]) -> Judgement:
    """One text through the scorer, as training would send it."""
    ids = tokenizer.encode(text, add_special_tokens=False) if tokenizer is not None else [0] * max(1, len(text.split()))
    group = group_of_row(row, text, ids)
    started = time.monotonic()
    scorer.score([group])
    seconds.append(time.monotonic() - started)
    return group.completions[0].judgements[scorer.names[0]]


def through(tokenizer: Any, text: str) -> str:
    """The text after the tokenizer, as a model's output would arrive."""
    if tokenizer is None:
        return text
    return str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=True))
