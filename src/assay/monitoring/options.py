"""What a user may choose about seeing a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from assay.errors import InputError

CONSOLES = ("auto", "live", "plain", "quiet")
TRACKERS = ("wandb", "trackio", "tensorboard")


@dataclass(frozen=True)
class MonitorOptions:
    """The `monitoring:` section of a run configuration."""

    console: Annotated[
        str, "auto, live, plain or quiet: auto draws the live view on a terminal, else a line a step."
    ] = "auto"
    trackers: Annotated[
        tuple[str, ...], "Where else to send metrics: wandb, trackio, tensorboard (each its own package)."
    ] = ()
    project: Annotated[str, "The trackers' project; change it to group your runs."] = "assay"
    run_name: Annotated[str, "The trackers' run name; the run directory's name where empty."] = ""
    tracker_offline: Annotated[bool, "Keep wandb's files local, to sync later, on a machine without network."] = False
    rollouts_every: Annotated[int, "Steps between stored rollouts; 1 keeps all, which doctor and view rely on."] = 1
    gold_field: Annotated[str, "The dataset column shown as gold in rollouts; found by usual names where empty."] = ""
    doctor_every: Annotated[int, "Show the doctor's top findings in the live view every N steps; 0 turns it off."] = 10

    def __post_init__(self) -> None:
        if self.console not in CONSOLES:
            raise InputError(f"monitoring.console is {self.console!r}; it can be {', '.join(CONSOLES)}")
        for tracker in self.trackers:
            if tracker not in TRACKERS:
                raise InputError(f"monitoring.trackers names {tracker!r}; known are {', '.join(TRACKERS)}")
        if self.rollouts_every < 1:
            raise InputError(f"monitoring.rollouts_every is {self.rollouts_every}; it must be 1 or more")
        if self.doctor_every < 0:
            raise InputError(f"monitoring.doctor_every is {self.doctor_every}; it must be 0 (off) or more")
