"""The level is what the host gives: emulated hosts, and refusal below what was required."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from assay.sandbox import Sandbox, SandboxOptions, IsolationError, linux, seccomp
which, require = sys.argv[1:]
if which != "here":
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.install_filter(seccomp.emulated_docker(landlock=which == "docker").code)
    linux.drop_capabilities()
try:
    with Sandbox(SandboxOptions(workers=1, require=require, allow_unsafe=True)) as box:
        print(json.dumps([box.isolation.level.label, box.run("print(1)").ok, list(box.isolation.missing)]))
except IsolationError as error:
    print(json.dumps(["refused", str(error)]))
"""


def ladder(mount_wrapper, which, require="restricted"):
    done = subprocess.run(
        [*mount_wrapper, sys.executable, "-c", PROGRAM, which, require], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_default_docker_gives_restricted_and_says_what_is_missing(mount_wrapper):
    level, runs, missing = ladder(mount_wrapper, "docker")
    assert (level, runs) == ("restricted", True)
    assert len(missing) == 1
    assert missing[0].startswith("isolated: ")
    assert "not permitted" in missing[0]


def test_docker_without_landlock_fails_closed_and_names_the_key(mount_wrapper):
    answer, why = ladder(mount_wrapper, "docker-without-landlock")
    assert answer == "refused"
    assert "Landlock" in why
    assert "require=no-read-wall" in why
    assert "allow_unsafe=true" in why
    assert "\n" not in why


def test_less_is_given_where_less_is_accepted(mount_wrapper):
    assert ladder(mount_wrapper, "docker-without-landlock", "no-read-wall")[:2] == ["no-read-wall", True]


def test_more_than_the_host_gives_is_refused(mount_wrapper):
    assert ladder(mount_wrapper, "docker", "isolated")[0] == "refused"


@pytest.mark.parametrize("require", ["no-read-wall", "limits-only"])
def test_unsafe_levels_need_both_keys(require):
    from assay.sandbox import SandboxOptions

    with pytest.raises(ValueError, match="allow_unsafe"):
        SandboxOptions(require=require)


COMMAND = """
import sys
from assay.sandbox import linux, seccomp
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
linux.install_filter(seccomp.emulated_docker(landlock=False).code)
linux.drop_capabilities()
sys.argv = ["assay", *sys.argv[1:]]
from assay.cli.main import main
main()
"""


def test_assay_sandbox_exits_1_below_restricted_and_says_why(mount_wrapper):
    done = subprocess.run(
        [*mount_wrapper, sys.executable, "-c", COMMAND, "sandbox", "--json"], capture_output=True, text=True
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["level"]) == (1, "no-read-wall")
    assert any("Landlock" in reason for reason in report["missing"])
    assert {probe["promise"]: probe["held"] for probe in report["probes"]}["your files cannot be read"] is False
    shown = subprocess.run([*mount_wrapper, sys.executable, "-c", COMMAND, "sandbox"], capture_output=True, text=True)
    assert "would raise it: restricted: Landlock is not available" in shown.stdout


@pytest.mark.parametrize("level", ["no-read-wall", "limits-only"])
def test_unsafe_levels_run_but_say_that_nothing_is_verified(level):
    from assay.rewards.code import robust_code_reward
    from assay.rewards.code_grade import LocalExecutor
    from assay.sandbox import Limits, Sandbox, SandboxOptions

    logged = {}
    tests = {"kind": "calls", "entry": "f", "cases": [[[1], 2]]}
    with Sandbox(SandboxOptions(workers=1, at_most=level, require=level, allow_unsafe=True)) as box:
        assert box.isolation.level.label == level
        executor = LocalExecutor(box)
        reward = robust_code_reward(["def f(x): return x + 1"], [tests], executor, log_extra=logged.__setitem__)
        assert box.run("while True: pass", limits=Limits(cpu_seconds=1, wall_seconds=60)).ended == "cpu_limit"
    assert reward == [1.0]
    assert logged["code_integrity"] == ["unverified"]
