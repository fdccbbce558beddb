"""Seeing a run: metrics, the rollout store, trackers, console, preflight, doctor, report, viewer. Reads run directories
and never changes training."""

from assay.monitoring.history import History, read_metrics
from assay.monitoring.metrics import merge, repetition, rollout_metrics
from assay.monitoring.monitor import Monitor, MonitorProtocol, NullMonitor
from assay.monitoring.options import MonitorOptions
from assay.monitoring.store import MetricsLog, RolloutStore

__all__ = [
    "History",
    "MetricsLog",
    "Monitor",
    "MonitorOptions",
    "MonitorProtocol",
    "NullMonitor",
    "RolloutStore",
    "merge",
    "read_metrics",
    "repetition",
    "rollout_metrics",
]
