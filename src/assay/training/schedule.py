"""The learning rate as a pure function of the step, so that resuming has nothing to restore."""

from __future__ import annotations

import math

from assay.training.options import TrainOptions


def learning_rate(step: int, options: TrainOptions, peak: float) -> float:
    """The step size of update `step` (counted from 0).

    >>> options = TrainOptions(steps=10, warmup_steps=2, lr_schedule="linear")
    >>> [round(learning_rate(step, options, 1.0), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    if step < options.warmup_steps:
        return peak * (step + 1) / options.warmup_steps
    done = (step - options.warmup_steps) / max(options.steps - options.warmup_steps, 1)
    shapes = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }
    return peak * max(shapes[options.lr_schedule], 0.0)
