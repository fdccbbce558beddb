"""`assay serve`: vLLM servers that a run with rollout.engine=vllm-server can train with."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import note, print_json
from assay.errors import InputError, RunError

if TYPE_CHECKING:
    from assay.rollouts.vllm_command import ServeCommand


def serve(
    recipe: Annotated[str, typer.Argument(help="The YAML recipe that will be trained.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Keys to change; after --, words for vLLM (--tensor-parallel-size 2)."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="How many servers, on ports from the first URL's on; default: one per URL.")
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the commands and do not run them.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the servers as JSON on standard output.")] = False,
) -> None:
    """Start the servers of RECIPE's rollout.vllm.urls here, and stop them on Ctrl-C.

    It starts a server for every URL: on several machines give each its own (rollout.vllm.urls=[...]), or use --print.
    """
    commands = planned(recipe, overrides or [], count)
    if print_only:
        show(commands, json_output)
        return
    from assay.rollouts.vllm_options import installed_version

    installed_version()
    run(commands, json_output)


def planned(recipe: str, words: list[str], count: int | None) -> list[ServeCommand]:
    """The commands of a recipe; `words` are overrides and words for vLLM."""
    import torch

    from assay.config.load import load_recipe
    from assay.rollouts.vllm_command import serve_commands

    first = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    config = load_recipe(recipe, overrides=words[:first])
    urls = list(config.rollout.vllm.urls)
    if count is not None:
        if count < 1:
            raise InputError(f"--count is {count}; it must be at least 1")
        head, _, port = urls[0].rstrip("/").rpartition(":")
        urls = [f"{head}:{int(port) + index}" for index in range(count)]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return serve_commands(config.model, config.rollout, urls, gpus=gpus, extra=words[first:])


def show(commands: list[ServeCommand], json_output: bool) -> None:
    if json_output:
        print_json([described(command) for command in commands])
        return
    for command in commands:
        print(command.line())
    note(f"Train with {key(commands)}")


def described(command: ServeCommand, pid: int | None = None) -> dict[str, Any]:
    found = {"url": command.url, "command": list(command.arguments), "environment": command.environment}
    return found if pid is None else {**found, "pid": pid}


def key(commands: list[ServeCommand]) -> str:
    """The overrides that make a run use these servers."""
    return f"rollout.engine=vllm-server 'rollout.vllm.urls=[{', '.join(command.url for command in commands)}]'"


def run(commands: list[ServeCommand], json_output: bool) -> None:
    """Start all, say when they are ready, and stop all when the person says so. One that dies leaves the others."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    processes = [start(command) for command in commands]
    try:
        if json_output:
            print_json([described(command, process.pid) for command, process in zip(commands, processes)])
            sys.stdout.flush()
        wait_ready(commands, processes)
        note(f"Ready. Train with {key(commands)}")
        watch(commands, processes)
    except KeyboardInterrupt:
        note("Stopping the servers.")
    finally:
        stop(processes)


def start(command: ServeCommand) -> subprocess.Popen[bytes]:
    """Run vLLM's own command, from the environment that assay runs in."""
    beside = Path(sys.executable).parent / "vllm"
    program = str(beside) if beside.exists() else shutil.which("vllm")
    if program is None:
        raise InputError("the command `vllm` is not installed beside assay; see docs/engines.md")
    # Standard output belongs to --json.
    return subprocess.Popen(
        [program, *command.arguments[1:]], env={**os.environ, **command.environment}, stdout=sys.stderr.fileno()
    )


def watch(commands: list[ServeCommand], processes: list[subprocess.Popen[bytes]]) -> None:
    """Return never: say which server ends, until none is left."""
    over: set[str] = set()
    while len(over) < len(processes):
        for command, process in zip(commands, processes):
            if process.poll() is not None and command.url not in over:
                over.add(command.url)
                note(f"The server {command.url} ended with status {process.returncode}; its messages are above.")
        time.sleep(0.5)
    raise RunError("all servers have ended; their messages are above")


def wait_ready(commands: list[ServeCommand], processes: list[subprocess.Popen[bytes]]) -> None:
    from assay.rollouts.vllm_http import Server
    from assay.rollouts.vllm_options import VllmOptions

    waiting = [Server(command.url, VllmOptions()) for command in commands]
    while waiting:
        if any(process.poll() is not None for process in processes):
            raise RunError(ended(commands, processes))
        waiting = [server for server in waiting if not server.is_healthy(5.0)]
        time.sleep(0.5)


def ended(commands: list[ServeCommand], processes: list[subprocess.Popen[bytes]]) -> str:
    over = [
        (command.url, process.returncode) for command, process in zip(commands, processes) if process.poll() is not None
    ]
    return "; ".join(f"the server {url} ended with status {code}; its messages are above" for url, code in over)


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
