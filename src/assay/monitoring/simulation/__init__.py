"""Simulated runs, healthy or with one planted fault: what the doctor is tested and measured on. The dynamics (who
solves what, how skill grows with signal, how long answers are) are simulated; metrics and files are as in real runs."""

from assay.monitoring.simulation.faults import FAULTS, Fault
from assay.monitoring.simulation.healthy import healthy
from assay.monitoring.simulation.stream import SimulatedRun, World, simulate, write_run, write_trl

__all__ = ["FAULTS", "Fault", "SimulatedRun", "World", "healthy", "simulate", "write_run", "write_trl"]
