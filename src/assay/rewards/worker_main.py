"""The other end of `workers.py`: a loop that reads jobs from standard input and answers on standard output.

Run as `python -m assay.rewards.worker_main MODULE:FUNCTION LIFELINE_FD MEMORY_MB`.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

HEADER = struct.Struct("!I")


def tie_to_parent(lifeline: int) -> None:
    """Die when the parent closes its end, even inside a C call: SIGIO's default action ends the process."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_blocking(lifeline, False)
    try:
        if os.read(lifeline, 1) == b"":
            os._exit(0)  # the parent was gone before SIGIO was armed
    except BlockingIOError:
        return


def limit(memory_mb: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_mb:
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # nothing that marks an answer writes a file
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means


def silence() -> None:
    """Nowhere to print to: standard error may be a file, and files may not grow here."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def send(stream: BinaryIO, reply: dict[str, Any]) -> None:
    payload = json.dumps(reply).encode()
    stream.write(HEADER.pack(len(payload)) + payload)
    stream.flush()


def answer(handler: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Run one job under its CPU limit."""
    signal.setitimer(signal.ITIMER_PROF, job["cpu_s"])
    try:
        return {"result": handler(job["message"])}
    except MemoryError:
        return {"memory": True}
    except BaseException as error:  # noqa: BLE001 - reported to the parent, which decides
        return {"error": f"{type(error).__name__}: {error}"[:2000]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    handler_name, lifeline, memory_mb = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a job prints must not mix with the answers
    tie_to_parent(lifeline)
    limit(memory_mb)
    module, _, name = handler_name.partition(":")
    try:
        handler = getattr(importlib.import_module(module), name)
    except BaseException as error:  # noqa: BLE001 - reported to the parent, which raises it
        send(outgoing, {"broken": f"{type(error).__name__}: {error}"[:2000]})
        return
    if memory_mb:
        silence()
    send(outgoing, {"ready": True})
    while header := incoming.read(HEADER.size):
        (size,) = HEADER.unpack(header)
        send(outgoing, answer(handler, json.loads(incoming.read(size))))


if __name__ == "__main__":
    main()
