"""The fixed example that TRL 1.16's own loss code was run on, as this library's inputs."""

import json
from pathlib import Path

import pytest
import torch

from assay.objectives import Denominators, PolicyOutputs, Rows

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_objectives.json").read_text())


@pytest.fixture
def golden():
    return GOLDEN["cases"]


@pytest.fixture
def example():
    """(logps with gradient, keyword arguments of Rows, entropies): two rows of 4 and 2 tokens, in float64."""
    fixture = GOLDEN["fixture"]
    fields = ("ratio", "old_logp", "mask", "advantages", "ref_logp", "entropies")
    t = {name: torch.tensor(fixture[name], dtype=torch.float64) for name in fields}
    logps = (t["old_logp"] + t["ratio"].log()).requires_grad_()
    rows = {
        "mask": t["mask"].bool(),
        "advantages": t["advantages"],
        "old_logps": t["old_logp"],
        "ref_logps": t["ref_logp"],
    }
    return logps, rows, t["entropies"]


@pytest.fixture
def run(example):
    """Loss, gradient and metrics of an objective on the example; `change` replaces rows' fields or denominators."""

    def run(objective, *, on_policy=False, counts=None, **change):
        logps, rows, entropies = example
        if on_policy:
            logps = rows["old_logps"].clone().requires_grad_()
        rows = Rows(**{**rows, **change})
        sums = Denominators.measure(rows.mask, torch.zeros(len(rows.mask), dtype=torch.long))
        denominators = Denominators.from_sums(sums, max_completion_length=8)
        if counts:
            denominators = Denominators(**{**denominators.__dict__, **counts})
        logps = logps.detach().clone().requires_grad_()
        loss, metrics = objective(PolicyOutputs(logps, entropies), rows, denominators)
        (gradient,) = torch.autograd.grad(loss, logps)
        return loss.item(), gradient, metrics.values()

    return run
