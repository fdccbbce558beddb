"""What preflight looks at, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from assay.records import Group, Prompt
from assay.rewards.audit import AuditReport

FIRED, CLEAR, NOT_CHECKABLE = "fired", "clear", "not checkable"


class Missing(Exception):
    """A rule lacks something; the message names it."""


@dataclass(frozen=True)
class Check:
    """One rule's word. `severity` is error, warning or info where the rule fired, else empty."""

    id: str
    title: str
    status: str
    evidence: str
    severity: str = ""
    fix: str = ""
    key: str = ""


@dataclass
class Evidence:
    """Everything that was measured before training; a part that was not measured is None.

    groups: scored samples of the untrained model, at the run's own sampling settings.
    audits: what the rewards room's audit found, one a reward function.
    trainer_logps: the policy's log-probs of each completion of `groups`, in order, policy-authored tokens only.
    dry_update: finite (bool), grad_norm, changed (did parameters move), reference_kl, from real steps that were undone;
        restored: whether the policy says the same afterwards, to the last bit.
    checkpoint: same (name of a part -> did it come back equal), bytes, seconds, from one that was saved and loaded.
    sync: arrived (did a perturbed weight change the engine), restored, seconds; or hangs (seconds without an end).
    endless: outcome, seconds, limit, isolation of a reward function that never returns.
    footprint: bytes that were measured: loaded (resident, with policy and engine), cache_per_token (keys and values),
        what a forward pass keeps for backward, kept_per_token and kept_anyway, and outputs_per_token (what the sampler
        keeps for the update).
    facts: configuration values by section.name and by last name.
    seconds: what was measured: generate, score, train.
    """

    train: Sequence[Prompt]
    heldout: Sequence[Prompt]
    facts: Mapping[str, Any]
    groups: Sequence[Group] | None = None
    audits: Sequence[AuditReport] | None = None
    trainer_logps: Sequence[np.ndarray] | None = None
    dry_update: Mapping[str, Any] | None = None
    checkpoint: Mapping[str, Any] | None = None
    sync: Mapping[str, Any] | None = None
    endless: Mapping[str, Any] | None = None
    tokenizer: Any = None
    stop_token_ids: frozenset[int] | None = None
    context: int | None = None
    pool_report: Any = None
    parameters: int | None = None
    trainable: int | None = None
    vocabulary: int | None = None
    memory_bytes: int | None = None
    footprint: Mapping[str, float] | None = None
    free_disk_bytes: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    def need(self, name: str, what: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise Missing(f"needs {what}")
        return value

    def completions(self) -> list[Any]:
        return [item for group in self.need("groups", "sampled completions") for item in group.completions]


@dataclass
class Report:
    """All rules in order, and the estimate."""

    checks: list[Check]
    estimate: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fired(self) -> list[Check]:
        """Errors first."""
        order = ("error", "warning", "info")
        return sorted((c for c in self.checks if c.status == FIRED), key=lambda check: order.index(check.severity))

    @property
    def alarming(self) -> bool:
        return any(check.severity in ("error", "warning") for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": not self.alarming,
            "findings": [asdict(check) for check in self.fired],
            "checks": [asdict(check) for check in self.checks],
            "estimate": dict(self.estimate),
        }


Found = tuple[str, str, str, str]  # severity, evidence, fix, key
Rule = Callable[[Evidence], "Found | str"]
