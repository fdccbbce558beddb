"""One sandbox for the session, and a way to start programs that own one."""

import subprocess
import sys

import pytest

from assay.sandbox import IsolationError, Limits, Sandbox, SandboxOptions


@pytest.fixture(scope="session")
def box():
    try:
        sandbox = Sandbox(SandboxOptions(limits=Limits(cpu_seconds=2, wall_seconds=10, memory_mb=256)))
    except IsolationError as error:
        pytest.skip(str(error))
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="session")
def executor(box):
    from assay.rewards.code_grade import LocalExecutor

    return LocalExecutor(box)


@pytest.fixture
def owner():
    """Start a Python program that owns a sandbox; it is gone after the test."""
    started = []

    def start(text):
        process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
