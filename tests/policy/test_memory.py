"""What a forward pass keeps: against torch's own count of what a live graph holds."""

import numpy as np
import pytest
import torch

from assay.policy import ModelOptions, ScoringBatch, load_policy
from assay.policy.memory import activation_bytes, sequence_bytes


def batch_of(tokens):
    return ScoringBatch((np.arange(tokens),), (np.arange(tokens), np.arange(tokens)), (0, 0))


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_kept_bytes_grow_with_the_tokens_and_shrink_with_checkpointing(tiny_folder, lora):
    options = {"path": str(tiny_folder("llama")), "dtype": "float32", "lora": lora}
    policy = load_policy(ModelOptions(**options), device="cpu")
    once, twice = (activation_bytes(policy, batch_of(tokens)) for tokens in (40, 80))
    assert twice / once == pytest.approx(2.0, rel=0.05)
    checkpointed = load_policy(ModelOptions(**options, gradient_checkpointing=True), device="cpu")
    assert activation_bytes(checkpointed, batch_of(40)) < 0.35 * once


def test_kept_bytes_of_a_layer_counted_by_hand():
    """One linear layer keeps its input; tanh its output: 4 bytes each."""

    class Toy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8, bias=False)

        def forward(self, batch):
            return torch.tanh(self.layer(torch.ones(len(batch.rows[0]), 8, requires_grad=True)))

    assert activation_bytes(Toy(), batch_of(5)) == 5 * 8 * 4 * 2


def test_bytes_of_a_cached_token(tiny_folder):
    policy = load_policy(ModelOptions(path=str(tiny_folder("llama")), dtype="float32"), device="cpu")
    assert sequence_bytes(policy) == 2 * 2 * 2 * 8 * 4
