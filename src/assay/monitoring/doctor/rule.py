"""The register of rules. Importing a rule module fills it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from assay.monitoring.doctor.case import Case
from assay.monitoring.doctor.finding import Finding

Check = Callable[[Case], Finding | None]


@dataclass(frozen=True)
class Rule:
    """`check` returns a finding, None when clear, or raises NotCheckable or TooEarly."""

    id: str
    title: str
    check: Check


RULES: dict[str, Rule] = {}


def rule(id: str, title: str) -> Callable[[Check], Check]:
    """Register a check under `id`; `title` says in a phrase what the rule looks for."""

    def register(check: Check) -> Check:
        if id in RULES:
            raise ValueError(f"rule {id} is registered twice")
        RULES[id] = Rule(id, title, check)
        return check

    return register
