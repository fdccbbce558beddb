"""Optimisers by name: they learn, and their state survives a checkpoint to the last bit."""

import pytest
import torch

from assay.errors import InputError
from assay.policy import ModelOptions, ScoringBatch, load_policy
from assay.training.checkpoint import Checkpoints
from assay.training.optimizers import build_optimizer
from assay.training.options import TrainOptions


def updates(policy, optimizer, count):
    batch = ScoringBatch((torch.arange(5).numpy(),), (torch.arange(9, 30).numpy(),), (0,))
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = -policy(batch).logps.sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit"])
def test_state_survives_a_checkpoint_exactly(tiny_folder, tmp_path, name):
    if name != "adamw":
        pytest.importorskip("bitsandbytes")
    model = ModelOptions(path=str(tiny_folder("llama", intermediate_size=512)), dtype="float32")
    options = TrainOptions(optimizer=name)
    policy = load_policy(model, device="cpu")
    optimizer = build_optimizer(policy, options)
    losses = updates(policy, optimizer, 4)
    assert losses[-1] < losses[0] - 1
    if name != "adamw":
        assert any(value.dtype == torch.uint8 for state in optimizer.state.values() for value in state.values()
                   if isinstance(value, torch.Tensor))  # fmt: skip
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(4, policy.trainable_state_dict(), {"optimizer": optimizer.state_dict()})
    expected = updates(policy, optimizer, 3)
    again = load_policy(model, device="cpu", seed=1)
    weights, state = checkpoints.load(4)
    again.load_trainable_state_dict(weights)
    fresh = build_optimizer(again, options)
    fresh.load_state_dict(state["optimizer"])
    assert updates(again, fresh, 3) == expected


def test_pages_need_a_gpu(tiny_folder):
    pytest.importorskip("bitsandbytes")
    policy = load_policy(ModelOptions(path=str(tiny_folder("llama")), dtype="float32"), device="cpu")
    with pytest.raises(InputError, match="take adamw_8bit"):
        build_optimizer(policy, TrainOptions(optimizer="paged_adamw_8bit"))
