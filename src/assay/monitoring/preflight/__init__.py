"""Preflight: would this run learn? Rules over a few scored samples of the untrained model and the run's plan, before a
GPU-hour is spent. What a rule needs is handed in; nothing here loads a model or a recipe."""

from assay.monitoring.preflight.evidence import Check, Evidence, Missing, Report
from assay.monitoring.preflight.plan import Estimate, estimate
from assay.monitoring.preflight.rules import RULES, preflight

__all__ = ["RULES", "Check", "Estimate", "Evidence", "Missing", "Report", "estimate", "preflight"]
