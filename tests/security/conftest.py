"""Runs attack configurations in a private mount namespace, each once per session."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("run_attacks.py")


def private_mounts() -> list[str]:
    """The `unshare` command that keeps an attack's mounts to itself; skips where the host refuses it."""
    command = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "--user", "--map-current-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this host refuses a private mount namespace, without which no attack is run")
    return command


@cache
def outcome(config: str) -> dict:
    command = [*private_mounts(), sys.executable, str(RUNNER), config]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        return {"failed": done.stderr[-3000:]}
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def attack_outcomes():
    """A function from a configuration to {"level", "attacks": {name: what went wrong}}; skips what the host cannot
    do.
    """

    def run(**config):
        if config["uid"] and os.geteuid() != 0:
            pytest.skip("needs root to become another user")
        result = outcome(json.dumps(config))
        if "failed" in result:
            if "gives untrusted programs only level" in result["failed"]:
                pytest.skip(
                    f"this host does not give level {config['level']}: {result['failed'].strip().splitlines()[-1]}"
                )
            pytest.fail(result["failed"])
        return result

    return run


@pytest.fixture(scope="session")
def mount_wrapper():
    return private_mounts()
