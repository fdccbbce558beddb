"""Runs the attack corpus against one sandbox configuration in a process of its own and prints what went wrong, as JSON.

Started under `unshare -m` by the tests. Argument: JSON with level, uid (0 or another) and, where wanted, landlock_abi,
docker (refuse what Docker's default profile refuses), pod (Docker's capabilities without its filter), python, only
(names, for a part). Prints {"level", "attacks": {name: "" or what went wrong}}.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from assay.sandbox import Limits, Sandbox, SandboxOptions, linux, seccomp
from assay.sandbox.syscalls import NUMBERS

HERE = Path(__file__).parent
CORPUS = runpy.run_path(str(HERE / "corpus.py"))
EXTRA_NUMBERS = {"vfork": 58, "creat": 85}
SMALL = {"cpu_seconds": 1, "wall_seconds": 4.0, "memory_mb": 256, "threads": 16, "scratch_mb": 4, "file_mb": 4}
MARKER = "MARK-" + secrets.token_hex(16)
SLACK = 6.0


def open_road() -> None:
    """In this private mount namespace, let any user reach the interpreter and the library, wherever they lie."""
    import assay

    needed = {sys.base_prefix, sys.prefix, str(Path(assay.__file__).parents[1]), str(HERE)}
    closed: dict[str, set[str]] = {}
    for path in needed:
        for parent in reversed(Path(path).parents):
            if not parent.stat().st_mode & 1:
                closed.setdefault(str(parent), set()).add(path)
                break
    for folder, paths in closed.items():
        held = {path: os.open(path, os.O_PATH) for path in paths}
        linux.mount("road", folder, "tmpfs", 0, "mode=755")
        for path, fd in held.items():
            os.makedirs(path)
            linux.mount(f"/proc/self/fd/{fd}", path, None, linux.MS_BIND | linux.MS_REC)
            os.close(fd)


def become(config: dict) -> None:
    """Take on the user and the outer walls of the configuration."""
    if config["uid"]:
        open_road()
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
    if not config["uid"] and (config.get("docker") or config.get("pod")):
        keep_docker_capabilities()
    if config.get("docker"):
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.install_filter(seccomp.emulated_docker().code)


def keep_docker_capabilities() -> None:
    """Docker's default set: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind, net_raw,
    ...
    """
    import struct

    kept = 0xA80425FB
    for bit in range(64):
        if not kept >> bit & 1:
            with contextlib.suppress(OSError):
                linux.prctl(24, bit)
    header = struct.pack("=Ii", 0x20080522, 0)
    linux.call("capset", header, struct.pack("=6I", kept & 0xFFFFFFFF, kept & 0xFFFFFFFF, 0, 0, 0, 0))


class World:
    """What must stay as it is: a file, its folder, a process with a secret in its environment, listeners."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="attack-")
        os.chmod(self.folder, 0o777)
        self.canary = Path(self.folder, "canary")
        self.canary.write_text("canary contents")
        self.canary.chmod(0o666)
        Path(self.folder, "marker").write_text(MARKER)
        command = [sys.executable, "-S", "-c", "input()"]
        self.victim = subprocess.Popen(command, stdin=subprocess.PIPE, env={"MARKER": MARKER})
        self.tcp, self.udp = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.abstract, self.datagram = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.name = "assay-" + secrets.token_hex(4)
        self.tcp.bind(("127.0.0.1", 0))
        self.udp.bind(("127.0.0.1", 0))
        self.abstract.bind("\0" + self.name)
        self.datagram.bind("\0" + self.name + "-dgram")
        self.tcp.listen()
        self.abstract.listen()
        for listener in (self.tcp, self.udp, self.abstract, self.datagram):
            listener.setblocking(False)

    def fill(self, text: str) -> str:
        values = {
            "{CANARY}": str(self.canary),
            "{DIR}": self.folder,
            "{VICTIM}": str(self.victim.pid),
            "{PORT}": str(self.tcp.getsockname()[1]),
            "{UDP}": str(self.udp.getsockname()[1]),
            "{ABSTRACT}": self.name,
            "{NUMBERS}": repr(
                {name: pair[0 if os.uname().machine == "x86_64" else 1] for name, pair in NUMBERS.items()}
            ),
        }
        for key, value in values.items():
            text = text.replace(key, value)
        return text

    def harmed(self) -> str:
        """What changed, or nothing."""
        state = Path(f"/proc/{self.victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if self.victim.poll() is not None or state not in "SRD":
            return f"the victim process is {state}"
        facts = self.canary.stat()
        if self.canary.read_text() != "canary contents" or facts.st_mode & 0o777 != 0o666 or facts.st_mtime == 0:
            return "the canary file was changed"
        if sorted(os.listdir(self.folder)) != ["canary", "marker"]:
            return f"the folder now holds {os.listdir(self.folder)}"
        for listener in (self.tcp, self.abstract):
            with contextlib.suppress(BlockingIOError):
                listener.accept()
                return "a connection reached a listener"
        for listener in (self.udp, self.datagram):
            with contextlib.suppress(BlockingIOError):
                listener.recv(10)
                return "a datagram reached a listener"
        return ""

    def close(self) -> None:
        self.victim.kill()
        self.victim.communicate()
        for listener in (self.tcp, self.udp, self.abstract, self.datagram):
            listener.close()
        for name in os.listdir(self.folder):
            os.unlink(os.path.join(self.folder, name))
        os.rmdir(self.folder)


def tests_for(kind: str):
    """The hidden tests of a kind of cheat."""
    from assay.rewards.code_tests import AssertTests, CallTests, StdioTests

    two = [((3, 4), 25), ((6, 8), 100)]
    asserts = {
        "asserts": "assert f(3, 4) == 25\nassert f(6, 8) == 100",
        "asserts_catching": "try: f(0, 0)\nexcept AssertionError: pass\nelse: raise ValueError\nassert True",
        "asserts_unittest": "import unittest\nclass T(unittest.TestCase):\n"
        "    def test_f(self): self.assertEqual(f(3, 4), 25)\n",
        "asserts_vacuous": "f(3, 4)",
        "asserts_uncalled": "assert 1 == 1",
        "asserts_list": "x = [2, 1]\nassert f(x) is None\nassert x == [1, 2]",
        "asserts_set": "assert f() == {1, 2, 3}",
    }
    if kind in asserts:
        return AssertTests(asserts[kind], "f")
    return {
        "calls": lambda: CallTests("f", (*two, (("secret", 0), MARKER))),
        "one": lambda: CallTests("f", (((3, 4), 25),)),
        "plain": lambda: CallTests("f", tuple(two)),
        "ones": lambda: CallTests("f", (((1, 0), 1), ((0, 1), 1))),
        "set": lambda: CallTests("f", (((1, 2), {1, 2, 3}),)),
        "stdio": lambda: StdioTests((("3 4\n", "7\n"),)),
        "stdio_lines": lambda: StdioTests((("3\n", "1\n2\n3\n"),)),
        "stdio_empty": lambda: StdioTests((("", ""),)),
    }[kind]()


HONEST = "def f(a, b): return a * a + b * b"


def start_all(box: Sandbox, world: World, only: set[str] | None) -> dict:
    """Start every attack and after each an honest program; name -> (judge, future, its honest neighbour)."""
    from assay.rewards.code_grade import LocalExecutor

    executor = LocalExecutor(box)
    jobs = {}
    wanted = lambda name: only is None or name in only  # noqa: E731
    small = Limits(**SMALL)
    level = box.isolation.level.label

    def add(name, judge, future):
        neighbour = executor.submit(HONEST, tests_for("plain"))
        jobs[name] = (judge, future, neighbour)

    for name, (kind, program) in CORPUS["CHEATS"].items():
        if wanted(name):
            add(name, judge_cheat, executor.submit(world.fill(program), tests_for(kind), small))
    prelude = world.fill(CORPUS["PRELUDE"])
    for name, program in CORPUS["ESCAPES"].items():
        if wanted(name):
            add(name, judge_escape, box.start(prelude + world.fill(program), limits=small))
    for name, (program, ends, changes) in CORPUS["BOMBS"].items():
        if wanted(name):
            limits = Limits(**{**SMALL, **changes})
            judge = lambda result, ends=ends, limits=limits: judge_bomb(result, ends, limits)  # noqa: E731
            add(name, judge, box.start(prelude + program, limits=limits))
    honest = {**CORPUS["HONEST"], **(CORPUS["HONEST_ISOLATED"] if level == "isolated" else {})}
    for name, program in honest.items():
        if wanted(f"honest_{name}"):
            add(f"honest_{name}", judge_honest, box.start(program, stdin="x" * 300_000))
    return jobs


def judge_cheat(grade) -> str:
    if grade.reward is None:
        return f"infra_error: {grade.detail}"
    if grade.reward:
        return f"it was paid: {grade}"
    return ""


def judge_escape(result) -> str:
    text = (result.stdout + result.stderr).decode(errors="replace")
    if "ESCAPED" in text or "NOT-INSIDE" in text or MARKER in text:
        return text[-600:]
    if result.ended == "infra_error":
        return f"infra_error: {result.detail}"
    return ""


def judge_bomb(result, ends: set[str], limits: Limits) -> str:
    if wrong := judge_escape(result):
        return wrong
    if result.usage.wall_s > limits.wall_seconds + result.usage.stalled_s + SLACK:
        return f"it outlived its limit: {result.usage}"
    return (
        "" if result.ended in ends else f"it ended as {result.ended}: {result.stdout[-300:]!r} {result.stderr[-300:]!r}"
    )


def judge_honest(result) -> str:
    return "" if result.ok and result.stdout else f"an honest program failed: {result}"


def main() -> None:
    config = json.loads(sys.argv[1])
    become(config)
    linux.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: whoever is orphaned comes to us
    os.environ["ASSAY_TEST_MARKER"] = MARKER
    world = World()
    before = set(os.listdir("/proc/self/fd"))
    options = SandboxOptions(
        at_most=config["level"],
        require=config["level"],
        landlock_abi=config.get("landlock_abi", 99),
        python=config.get("python"),
        allow_unsafe=True,
    )
    only = set(config["only"]) if config.get("only") else None
    verdicts = {}
    with Sandbox(options) as box:
        for name, (judge, future, neighbour) in start_all(box, world, only).items():
            verdicts[name] = judge(future.result()) or world.harmed()
            grade = neighbour.result()
            if not verdicts[name] and grade.reward != 1.0:
                verdicts[name] = f"the honest program beside it failed: {grade}"
        facts = {"level": box.isolation.level.label, "mechanisms": box.isolation.mechanisms, "retries": box.retries}
    verdicts["nothing_is_left"] = leftovers(world, before)
    world.close()
    print(json.dumps({**facts, "attacks": verdicts}))


def leftovers(world: World, before: set[str]) -> str:
    """Processes, descriptors and folders that a closed sandbox left behind."""
    time.sleep(0.1)
    children = [pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()]
    mine = [pid for pid in children if pid != str(world.victim.pid)]
    if mine:
        return f"processes left: {mine}"
    after = set(os.listdir("/proc/self/fd"))
    return "" if len(after) == len(before) else f"descriptors: {len(before)} before, {len(after)} after"


if __name__ == "__main__":
    main()
