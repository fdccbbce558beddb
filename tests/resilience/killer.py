"""Runs a tiny training in this process and, if asked, kills it with SIGKILL at a precise place. Started by the tests.

    python killer.py RECIPE [PLACE COUNT]

PLACE is where: `generation` (between two tokens), `backward` (before a backward pass), `checkpoint` (after half of the
weights' bytes are on the disk), `rename` (everything written, not yet renamed), `metrics` (between a step's rollouts
and its line). COUNT is how many passes of that place go well first.
"""

import functools
import os
import signal
import sys
from pathlib import Path

import torch

from assay.training import checkpoint


def kill_after(count, function):
    seen = 0

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        nonlocal seen
        seen += 1
        if seen > count:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return wrapper


def half_a_file(tensors, path):
    Path(path).write_bytes(b"\x10\x00\x00\x00half a checkpoint")
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place, count):
    from assay.monitoring import store
    from assay.rollouts import transformers_engine

    if place == "generation":
        transformers_engine.draw = kill_after(count, transformers_engine.draw)
    elif place == "backward":
        torch.Tensor.backward = kill_after(count, torch.Tensor.backward)
    elif place == "checkpoint":
        whole, seen = checkpoint.save_file, 0

        def sometimes(tensors, path):
            nonlocal seen
            seen += 1
            return whole(tensors, path) if seen <= count else half_a_file(tensors, path)

        checkpoint.save_file = sometimes
    elif place == "rename":
        checkpoint.os.replace = kill_after(count, checkpoint.os.replace)
    elif place == "metrics":
        store.MetricsLog.append = kill_after(count, store.MetricsLog.append)
    else:
        raise SystemExit(f"unknown place {place}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        arm(sys.argv[2], int(sys.argv[3]))
    import assay

    assay.train(sys.argv[1], overrides=["monitoring.console=quiet"])
