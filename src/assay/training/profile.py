"""A trace of a few steps: which operation of which phase takes the time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


class StepProfiler:
    """Called after every update; records `steps` updates (with the generation before them), from the second on.

    Writes `trace.json.gz` (Chrome's trace format; ui.perfetto.dev opens it) and `operations.txt`, the most expensive
    operations, into `folder`. Recording slows the steps down and holds their events in memory: some 100 MB a step.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder = folder
        self.left = steps
        self.recording: profile | None = None

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.recording is not None:
            self.left -= 1
            if self.left == 0:
                self.close()
        elif self.left:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
            self.recording = profile(activities=activities)
            self.recording.start()

    def close(self) -> None:
        """Write what was recorded so far, if anything was."""
        if self.recording is None:
            return
        self.recording.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.recording.export_chrome_trace(str(self.folder / "trace.json.gz"))
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = self.recording.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=60)
        (self.folder / "operations.txt").write_text(table + "\n", encoding="utf-8")
        self.recording, self.left = None, 0
