"""The register of preflight rules; importing a rule module fills it, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable

from assay.monitoring.preflight.evidence import Rule

RULES: dict[str, tuple[str, Rule]] = {}


def rule(id: str, title: str) -> Callable[[Rule], Rule]:
    """Register a rule under its id, with what it looks at in a phrase."""

    def register(check: Rule) -> Rule:
        RULES[id] = (title, check)
        return check

    return register
