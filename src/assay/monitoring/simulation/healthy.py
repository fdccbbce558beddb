"""Runs without a fault, as different from one another as real ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assay.monitoring.simulation.stream import World, constant, line


def healthy(seed: int) -> World:
    """A healthy run; size, speed, difficulty, rewards and length all vary with the seed."""
    rng = np.random.default_rng(10_000 + seed)
    steps = int(rng.choice([60, 100, 150, 250, 400]))
    length = float(rng.choice([60, 250, 700, 2000]))
    entropy, falls = rng.uniform(0.25, 0.9), rng.uniform(0.1, 0.5)
    world = World(
        seed=seed,
        steps=steps,
        prompts=int(rng.choice([8, 16, 32])),
        group_size=int(rng.choice([6, 8, 16])),
        skill=float(rng.uniform(-1.2, 0.3)),
        spread=float(rng.uniform(0.8, 1.8)),
        gain=float(rng.uniform(1.5, 3.5)) / steps,
        length=length,
        cap=int(length * 4),
        length_sigma=float(rng.uniform(0.25, 0.4)),
        correct_growth=line(1.0, float(rng.uniform(0.9, 1.25))),
        wrong_growth=line(1.1, float(rng.uniform(1.0, 1.35))),
        entropy=lambda x: entropy * (1 - falls * x),
        kl=None if rng.random() < 0.5 else line(0.001, float(rng.uniform(0.01, 0.2))),
        gap=constant(float(rng.uniform(0.002, 0.02))),
        heldout_prompts=int(rng.choice([100, 200, 500])),
        heldout_every=int(rng.choice([5, 10, 20])),
    )
    if rng.random() < 0.4:
        world = replace(world, weights={"accuracy": 1.0, "format": 0.2}, format_skill=float(rng.uniform(-1, 2)))
    return world
