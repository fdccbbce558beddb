"""Weights on their way to a vLLM engine: what it must hold afterwards, and whether it does."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from assay.errors import InputError, RunError
from assay.policy.weights import PolicyWeights
from assay.rollouts.vllm_worker import Digest, digest, sample

logger = logging.getLogger(__name__)

Weights = Iterable[tuple[str, torch.Tensor]]


class Recorded:
    """Passes weights on, in the engine's precision, and keeps the digests that the engine must give back.

    `head` names the output embedding of a model that ties it: it is not among the weights, but must follow them.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, head: Mapping[str, str]) -> None:
        self.weights = weights
        self.dtype = dtype
        self.head = head
        self.expected: dict[str, Digest] = {}

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.weights:
            self.expected[name] = digest(sample(tensor, self.dtype))
            if name in self.head:
                self.expected[self.head[name]] = self.expected[name]
            yield name, tensor.to(self.dtype)


def tied_head(transformer: Any) -> dict[str, str]:
    """{name of the input embedding: name of the output embedding} of a transformers model that ties them, else {}."""
    if not getattr(transformer.config, "tie_word_embeddings", False):
        return {}
    names = {id(module): name for name, module in transformer.named_modules()}
    inner, outer = transformer.get_input_embeddings(), transformer.get_output_embeddings()
    return {f"{names[id(inner)]}.weight": f"{names[id(outer)]}.weight"}


def adapter_digests(weights: PolicyWeights, dtype: torch.dtype) -> dict[str, Digest]:
    """Digests of the adapters as vLLM keeps them: in the engine's precision, the scale in the second matrix."""
    found: dict[str, Digest] = {}
    for name, adapter in weights.adapters():
        found[f"{name}.lora_A"] = digest(adapter.down.to(dtype))
        found[f"{name}.lora_B"] = digest(adapter.up.to(dtype) * adapter.scale)
    return found


def check_base(
    weights: PolicyWeights, dtype: torch.dtype, head: Mapping[str, str], found: Mapping[str, Digest], engine: str
) -> None:
    """Raise InputError unless an engine that is given adapters has the weights that they were made for."""
    recorded = Recorded(weights.base(), dtype, head)
    for _ in recorded:
        pass
    try:
        compare(recorded.expected, found, engine, 0)
    except RunError as error:
        raise InputError(
            f"{engine} has other base weights than model.path: it serves another model, or a run that trained all "
            f"weights changed them; start it again. ({error})"
        ) from error


def compare(expected: Mapping[str, Digest], found: Mapping[str, Digest], engine: str, version: int) -> int:
    """How many weights were read back and are right.

    Raises:
        RunError: with the first difference, if any weight that was read back is not the trainer's, or none could be.
    """
    common = [name for name in expected if name in found]
    wrong = [name for name in common if expected[name][0] != found[name][0]]
    if wrong:
        name = wrong[0]
        raise RunError(
            f"{engine} does not hold the weights of policy version {version}: {len(wrong)} of {len(common)} that were "
            f"read back differ, first {name}: norm {found[name][1]:.7g} there, {expected[name][1]:.7g} here. "
            "Checkpoints are kept. Restart engine and run; if it happens again, report the vLLM version and the model"
        )
    if expected and not common:
        raise RunError(
            f"{engine}: none of {len(expected)} weights could be read back (expected {next(iter(expected))}, ...; "
            f"found {next(iter(found), 'none')}, ...), so nothing proves that they arrived; take another engine"
        )
    return len(common)


def check_version(found: str, version: int, engine: str) -> None:
    """Raise RunError unless the engine says that it has this version."""
    if found != str(version):
        raise RunError(f"{engine} says that it has policy version {found!r}, but version {version} was sent to it")
