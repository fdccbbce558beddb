"""The doctor: rules over a run's metrics and rollouts that name what is wrong, causes before symptoms, with evidence. A
rule fires, is clear, or says what it lacks; it never guesses from missing data and never changes a run."""

from assay.monitoring.doctor.case import Case, NotCheckable, TooEarly
from assay.monitoring.doctor.diagnose import diagnose
from assay.monitoring.doctor.finding import Clear, Diagnosis, Finding, Unchecked, verdict
from assay.monitoring.doctor.rule import RULES, Rule, rule
from assay.monitoring.doctor.symptoms import SYMPTOMS, Answer, walk
from assay.monitoring.doctor.thresholds import Thresholds

__all__ = [
    "RULES",
    "SYMPTOMS",
    "Answer",
    "Case",
    "Clear",
    "Diagnosis",
    "Finding",
    "NotCheckable",
    "Rule",
    "Thresholds",
    "TooEarly",
    "Unchecked",
    "diagnose",
    "rule",
    "verdict",
    "walk",
]
