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
