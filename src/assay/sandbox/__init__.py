"""Runs an untrusted program and returns what happened. Standard library only; a leaf. Nothing here knows about rewards,
models or training.

`Sandbox` keeps warm interpreters (zygotes) that fork once for every program; confine.py says how each level of
isolation is made, witness.py tries it for real, harness.py is what runs beside the program."""

from assay.sandbox.options import Level, Limits, SandboxOptions
from assay.sandbox.pool import Sandbox, Session
from assay.sandbox.results import Ended, InfraError, Isolation, IsolationError, Probe, RunResult, Usage
from assay.sandbox.runs import ProgramEnded, Run

__all__ = [
    "Ended",
    "InfraError",
    "Isolation",
    "IsolationError",
    "Level",
    "Limits",
    "Probe",
    "ProgramEnded",
    "Run",
    "RunResult",
    "Sandbox",
    "SandboxOptions",
    "Session",
    "Usage",
]
