"""Runs every preflight rule over the evidence."""

from __future__ import annotations

from assay.monitoring.preflight import rules_answers, rules_machine
from assay.monitoring.preflight.evidence import CLEAR, FIRED, NOT_CHECKABLE, Check, Evidence, Missing, Report
from assay.monitoring.preflight.plan import estimate
from assay.monitoring.preflight.register import RULES

# Importing them is what registers their rules.
RULE_MODULES = (rules_answers, rules_machine)


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
