"""What the doctor says: findings, and what it could not check."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One diagnosis. `evidence` is a sentence with the numbers it rests on; `fix` says what to do, `key` where.

    `window` is (first, last) step of the evidence; `rollouts` are ids "step/group/sample" worth opening;
    `explained_by` names the finding upstream that would produce this one by itself.
    """

    id: str
    severity: str
    title: str
    evidence: str
    fix: str
    key: str = ""
    window: tuple[int, int] | None = None
    rollouts: tuple[str, ...] = ()
    explained_by: str | None = None

    def demoted(self, cause: str) -> Finding:
        return replace(self, explained_by=cause)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "severity": self.severity,
            "title": self.title,
            "evidence": self.evidence,
            "fix": self.fix,
            "key": self.key,
            "window": list(self.window) if self.window else None,
            "rollouts": list(self.rollouts),
            "explained_by": self.explained_by,
        }


@dataclass(frozen=True)
class Unchecked:
    """A rule that could not speak: the metric or file that it needs, or how much more of the run."""

    id: str
    title: str
    needs: str

    def to_json(self) -> dict[str, str]:
        return {"id": self.id, "title": self.title, "needs": self.needs}


@dataclass(frozen=True)
class Clear:
    id: str
    title: str


@dataclass
class Diagnosis:
    """All rules sorted: `findings` most likely cause first (what another finding explains comes last)."""

    run: str
    source: str
    steps: int
    findings: list[Finding] = field(default_factory=list)
    clear: list[Clear] = field(default_factory=list)
    not_checkable: list[Unchecked] = field(default_factory=list)
    too_early: list[Unchecked] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def alarming(self) -> bool:
        """Whether anything is worse than information."""
        return any(finding.severity != "info" for finding in self.findings)

    @property
    def first(self) -> Finding | None:
        return self.findings[0] if self.findings else None

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "source": self.source,
            "steps": self.steps,
            "verdict": verdict(self),
            "findings": [finding.to_json() for finding in self.findings],
            "clear": [rule.id for rule in self.clear],
            "not_checkable": [rule.to_json() for rule in self.not_checkable],
            "too_early": [rule.to_json() for rule in self.too_early],
            "warnings": self.warnings,
        }


def verdict(diagnosis: Diagnosis) -> str:
    """One sentence."""
    first = diagnosis.first
    if first is not None and first.severity != "info":
        return f"{first.title} ({first.id})"
    if not diagnosis.steps:
        return "Nothing to judge yet: no step has been logged."
    noted = f"; {len(diagnosis.findings)} remark(s)" if diagnosis.findings else ""
    return f"Nothing wrong found: {len(diagnosis.clear)} rules are clear{noted}."
