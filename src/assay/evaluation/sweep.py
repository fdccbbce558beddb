"""Sweeps: one recipe under several settings and seeds, each run its own process and its own run directory.

Nothing is remembered between two calls but the run directories: `assay train` goes on with a run that was cut off and
returns at once for one that is finished, so the same sweep command resumes the sweep.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from assay.errors import InputError

KEYS = ("recipe", "vary", "settings", "set", "seeds", "parallel", "output_dir")


@dataclass(frozen=True)
class Sweep:
    """What to run: every combination of `vary`'s values, under each bundle of `settings`, with each seed.

    Keys are dotted configuration keys. A bundle sets keys that belong together and has a `name` for the run directory.
    `fixed` applies to all.
    """

    recipe: str
    output_dir: str
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    settings: Sequence[Mapping[str, Any]] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"sweep seeds are {list(self.seeds)}; give at least one, each once")
        for key, values in self.vary.items():
            if not values:
                raise InputError(f"sweep key {key} has no values; give a list such as {key}=[a,b]")
        names = [bundle.get("name") for bundle in self.settings]
        if None in names or len(set(names)) < len(names):
            raise InputError(f"each of the sweep's settings needs a name of its own; got {names}")

    def runs(self) -> list[SweepRun]:
        """All runs, seed by seed: every setting has its first run before any has its second."""
        bundles = [dict(bundle) for bundle in self.settings] or [{}]
        grid = [dict(zip(self.vary, values, strict=True)) for values in itertools.product(*self.vary.values())]
        runs = []
        for seed, bundle, chosen in itertools.product(self.seeds, bundles, grid):
            bundle = dict(bundle)
            words = [str(bundle.pop("name"))] if "name" in bundle else []
            name = "-".join([*words, *(str(value) for value in chosen.values()), f"seed{seed}"])
            name = re.sub(r"[^A-Za-z0-9._=+-]+", "_", name)
            keys = {**self.fixed, **bundle, **chosen, "seed": seed, "name": name, "output_dir": self.output_dir}
            runs.append(SweepRun(name, tuple(f"{key}={as_yaml(value)}" for key, value in keys.items())))
        names = [run.name for run in runs]
        if clash := {name for name in names if names.count(name) > 1}:
            raise InputError(f"two runs of the sweep would be called {clash.pop()!r}; tell their values apart")
        return runs


@dataclass(frozen=True)
class SweepRun:
    """One run: its directory's name and the overrides that make it."""

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """How a run's process ended; `log` holds what it printed, `reason` its last line where it failed."""

    name: str
    status: int
    seconds: float
    log: Path
    reason: str = ""


def read_sweep(path: str | Path) -> dict[str, Any] | None:
    """The keys of a sweep file, its recipe resolved relative to the file; None where the file is a plain recipe."""
    path = Path(path)
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give a recipe or a sweep file") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict) or "recipe" not in tree:
        return None
    if unknown := set(tree) - set(KEYS):
        raise InputError(f"{path}: unknown key {unknown.pop()}; a sweep file has {', '.join(KEYS)}")
    recipe = path.parent / tree["recipe"]
    if not recipe.exists():
        raise InputError(f"{path}: the recipe {recipe} does not exist")
    return {**tree, "recipe": str(recipe)}


def run_sweep(
    sweep: Sweep,
    parallel: int = 1,
    on_event: Callable[[str, SweepRun, Ended | None], None] = lambda event, run, ended: None,
    command: Sequence[str] = (sys.executable, "-m", "assay.cli.main", "train"),
) -> list[Ended]:
    """Run everything, `parallel` processes at a time; a run that fails does not stop the others.

    Processes that run at once share the cores, and each sees its own part of the GPUs (CUDA_VISIBLE_DEVICES). Ctrl-C is
    passed on once to the running processes, which checkpoint; KeyboardInterrupt then goes on to the caller.
    """
    if parallel < 1:
        raise InputError(f"parallel is {parallel}; at least one process must run")
    waiting = list(reversed(sweep.runs()))
    running: list[_Process] = []
    ended: list[Ended] = []
    folder = Path(sweep.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                run = waiting.pop()
                on_event("start", run, None)
                slot = min(set(range(parallel)) - {process.slot for process in running})
                environment = environment_of(slot, parallel, os.environ)
                running.append(_Process(run, [*command, sweep.recipe, *run.overrides], folder, slot, environment))
            for process in _finished(running):
                running.remove(process)
                ended.append(process.ended())
                on_event("end", process.run, ended[-1])
    except BaseException:
        _stop(running)
        raise
    return ended


def environment_of(slot: int, parallel: int, environment: Mapping[str, str]) -> dict[str, str]:
    """What the process in `slot` of `parallel` is given: its share of the cores, and every parallel-th GPU.

    Where there are fewer GPUs than processes they take turns; a variable that is set stays, but that the GPUs which
    CUDA_VISIBLE_DEVICES names are dealt out.

    >>> [environment_of(slot, 2, {"CUDA_VISIBLE_DEVICES": "0,1,2"})["CUDA_VISIBLE_DEVICES"] for slot in (0, 1)]
    ['0,2', '1']
    """
    if parallel == 1:
        return dict(environment)
    given = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // parallel)), **environment}
    gpus = visible_gpus(environment)
    if gpus:
        given["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[slot::parallel] or [gpus[slot % len(gpus)]])
    return given


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    if (named := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


class _Process:
    """A training process with its log. In a session of its own: a terminal's Ctrl-C reaches it through us, once."""

    def __init__(
        self, run: SweepRun, command: Sequence[str], folder: Path, slot: int, environment: Mapping[str, str]
    ) -> None:
        self.run = run
        self.slot = slot
        self.log = folder / f"{run.name}.log"
        self.started = time.monotonic()
        self.output: IO[bytes] = open(self.log, "ab")  # noqa: SIM115 - closed in ended()
        self.process = subprocess.Popen(
            list(command), stdout=self.output, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
        )

    def ended(self) -> Ended:
        status = self.process.wait()
        self.output.close()
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = (lines or ["no output"])[-1] if status else ""
        return Ended(self.run.name, status, time.monotonic() - self.started, self.log, reason)


def _finished(running: Sequence[_Process]) -> list[_Process]:
    """Block until some process has ended; return those."""
    while True:
        done = [process for process in running if process.process.poll() is not None]
        if done:
            return done
        time.sleep(0.1)


def _stop(running: Iterable[_Process]) -> None:
    """Ask the processes to checkpoint and end; a second interrupt ends them at once."""
    running = list(running)
    try:
        for process in running:
            process.process.send_signal(signal.SIGINT)
        for process in running:
            process.ended()
    except KeyboardInterrupt:
        for process in running:
            process.process.kill()
            process.ended()


def as_yaml(value: Any) -> str:
    """One line that reads back as `value`, also for floats such as 3e-07, which bare YAML takes for text.

    >>> as_yaml(3e-07), as_yaml([1, "a"]), as_yaml(None), as_yaml("grpo")
    ('3.0e-07', '[1, a]', 'null', 'grpo')
    """
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")
