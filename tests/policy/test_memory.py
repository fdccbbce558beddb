"""What a forward pass keeps: against torch's own count of what a live graph holds."""

import os
import subprocess
import sys

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


PEAK_OF_A_STEP = """
import sys
import numpy as np, torch
from assay.policy import ModelOptions, ScoringBatch, load_policy

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

policy = load_policy(ModelOptions(path=sys.argv[1], dtype="float32"), device="cpu")
prompt = np.arange(50)
batch = ScoringBatch((prompt,), tuple(np.arange(100) for _ in range(16)), (0,) * 16)
policy(ScoringBatch((prompt,), (prompt,), (0,))).logps.sum().backward()
# Loading has a peak of its own: from here on the largest size counts anew.
open("/proc/self/clear_refs", "w").write("5")
before = peak()
policy(batch).logps.sum().backward()
print(peak() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak from /proc")
def test_a_larger_vocabulary_costs_its_embedding_and_nothing_else(tmp_path):
    """1,600 tokens: the logits of 60,000 tokens would be 384 MB, of 120,000 twice that; neither may exist at once."""
    from assay.policy.tiny import save_tiny

    taken = []
    for vocabulary in (60_000, 120_000):
        folder = save_tiny(tmp_path / str(vocabulary), "llama", vocab_size=vocabulary)
        words = [sys.executable, "-c", PEAK_OF_A_STEP, str(folder)]
        taken.append(int(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1]))
    # Chunks of 24 MB; the allocator keeps one or two more now and then.
    assert max(taken) < 250e6
    assert taken[1] - taken[0] < 150e6
