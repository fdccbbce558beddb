"""Runs every rule over a run and puts what it finds in order."""

from __future__ import annotations

from assay.monitoring.doctor import (
    rules_groups,
    rules_hacking,
    rules_offpolicy,
    rules_outcome,
    rules_rewards,
    rules_update,
)
from assay.monitoring.doctor.case import Case, NotCheckable, TooEarly
from assay.monitoring.doctor.causes import rank
from assay.monitoring.doctor.finding import Clear, Diagnosis, Finding, Unchecked
from assay.monitoring.doctor.rule import RULES
from assay.monitoring.doctor.thresholds import Thresholds
from assay.monitoring.sources import Run

# Importing them is what registers their rules.
RULE_MODULES = (rules_rewards, rules_groups, rules_update, rules_offpolicy, rules_outcome, rules_hacking)


def diagnose(run: Run, thresholds: Thresholds | None = None, now: float | None = None) -> Diagnosis:
    """Every rule's word on the run. `now` (seconds since 1970) lets SY01 see that a live run stands still."""
    case = Case(run, thresholds or Thresholds(), now)
    history = run.history
    # assay's step 0 is an evaluation.
    steps = len(history) - int(history.source == "assay" and 0 in history.steps)
    diagnosis = Diagnosis(str(run.path), history.source, steps, warnings=list(history.warnings))
    findings: list[Finding] = []
    for rule in RULES.values():
        try:
            found = rule.check(case)
        except NotCheckable as missing:
            diagnosis.not_checkable.append(Unchecked(rule.id, rule.title, str(missing)))
        except TooEarly as early:
            diagnosis.too_early.append(Unchecked(rule.id, rule.title, str(early)))
        else:
            if found is None:
                diagnosis.clear.append(Clear(rule.id, rule.title))
            else:
                findings.append(found)
    diagnosis.findings = rank(findings)
    return diagnosis
