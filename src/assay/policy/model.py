"""The policy: one nn.Module that scores completions."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from torch import nn

from assay.errors import InputError
from assay.objectives import PolicyOutputs, update_reference
from assay.policy import adapters
from assay.policy.attention import KEYWORD, shared_prefix_attention
from assay.policy.batch import ScoringBatch
from assay.policy.head import LogitRule, token_logps
from assay.policy.options import ModelOptions
from assay.policy.packing import Layout, padded_layout, shared_layout
from assay.policy.recording import places, replayed
from assay.policy.weights import PolicyWeights

logger = logging.getLogger(__name__)

EntropyMode = Literal["none", "value", "grad"]


class Policy(nn.Module):
    """A causal language model that returns log-probs, entropies and values of given completions.

    Wrappers (DDP, FSDP2) wrap this module; everything that needs gradients goes through `forward`. The mode
    (`train()`/`eval()`) only matters for dropout, which is zero unless asked for.

    Attributes:
        model: the transformers model, possibly inside a peft model.
        choices: what was measured or found at start (dtype, prefix sharing); store it and pass it to `load_policy`
            again, so that a resumed run computes the same bits.
    """

    def __init__(self, model: nn.Module, options: ModelOptions, choices: dict[str, Any]) -> None:
        super().__init__()
        self.model: Any = model
        self.options = options
        self.choices = choices
        self.rule = logit_rule(self.transformer.config)
        self.value_head: nn.Linear | None = None
        self.critic: nn.Module | None = None
        # In a list, so that neither optimiser, wrapper nor state_dict sees the frozen copy.
        self._reference: list[Policy] = []

    @property
    def transformer(self) -> Any:
        """The transformers model (a PreTrainedModel) under the adapters."""
        base = getattr(self.model, "get_base_model", None)
        return base() if base is not None else self.model

    @property
    def device(self) -> torch.device:
        return self.transformer.get_input_embeddings().weight.device

    @property
    def config(self) -> transformers.PretrainedConfig:
        return self.transformer.config

    @property
    def has_adapters(self) -> bool:
        return hasattr(self.model, "disable_adapter")

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts are forwarded once for all their completions; micro-batch plans depend on it."""
        return bool(self.choices["prefix_sharing"])

    def forward(
        self,
        batch: ScoringBatch,
        *,
        temperature: float = 1.0,
        entropies: EntropyMode = "none",
        reference: bool = False,
    ) -> PolicyOutputs:
        """Score every token of `batch.rows`.

        Args:
            batch: B rows; an empty one costs one token and yields shape [0, 1] with zero gradients for all parameters.
            temperature: log-probs are those of softmax(logits / temperature); give the sampler's.
            entropies: "value" without, "grad" with a gradient; nats.
            reference: score with the reference policy, without gradient.

        Returns:
            PolicyOutputs with [B, T] tensors, float32, right-padded with zeros: `logps`; `entropies` if asked;
            `values` (the critic's estimate before each token is written) if there is a critic.
        """
        if reference:
            with torch.no_grad():
                return self._score_reference(batch, temperature)
        if batch.is_empty:
            return self._score_nothing(temperature, entropies)
        return self._score(batch, temperature, entropies)

    def reference(self, batch: ScoringBatch, *, temperature: float = 1.0) -> torch.Tensor:
        """[B, T] log-probs of the reference policy: adapters off, or the frozen copy."""
        return self(batch, temperature=temperature, reference=True).logps

    def _score(self, batch: ScoringBatch, temperature: float, entropies: EntropyMode) -> PolicyOutputs:
        layout = self.layout(batch)
        with self._known_outputs(batch, layout):
            hidden = self._hidden(self.transformer.base_model, layout, batch)
        head = self.transformer.get_output_embeddings()
        logps, entropy = token_logps(
            hidden,
            head.weight,
            layout.targets,
            bias=getattr(head, "bias", None),
            rule=LogitRule(self.rule.scale, self.rule.softcap, temperature),
            entropies=entropies != "none",
            entropy_grad=entropies == "grad",
            float32_logits=self.options.fp32_lm_head,
        )
        values = None
        if self.value_head is not None:
            trunk = hidden if self.critic is None else self._hidden(self.critic, layout, batch)
            values = layout.scatter(self.value_head(trunk.to(self.value_head.weight.dtype)).squeeze(-1))
        return PolicyOutputs(
            logps=layout.scatter(logps),
            entropies=None if entropy is None else layout.scatter(entropy),
            values=values,
        )

    def layout(self, batch: ScoringBatch) -> Layout:
        return (shared_layout if self._shares(batch) else padded_layout)(batch, self.device)

    def _shares(self, batch: ScoringBatch) -> bool:
        return self.shares_prefixes and not batch.model_inputs

    def _known_outputs(self, batch: ScoringBatch, layout: Layout) -> contextlib.AbstractContextManager[Any]:
        """Let adapted layers take what the sampler computed for these very tokens with these very weights."""
        found = places(batch) if layout.shared is not None else None
        if found is None:
            return contextlib.nullcontext()
        recording, index = found
        return replayed(self.transformer, recording, torch.from_numpy(index).to(self.device))

    def replays(self, batch: ScoringBatch) -> bool:
        """Whether scoring this batch takes the adapted layers' outputs from the sampler."""
        return self._shares(batch) and places(batch) is not None

    def _hidden(self, backbone: nn.Module, layout: Layout, batch: ScoringBatch) -> torch.Tensor:
        """[N, H] final hidden states at the positions that predict the targets."""
        inputs: dict[str, Any] = dict(batch.model_inputs)
        if layout.shared is not None:
            # A four-dimensional mask keeps transformers from building one of its own; the layout says who sees whom.
            inputs[KEYWORD] = functools.partial(shared_prefix_attention, layout.shared)
            inputs["attention_mask"] = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=self.device)
            inputs["position_ids"] = layout.position_ids
        with self._autocast():
            states = backbone(input_ids=layout.input_ids, use_cache=False, **inputs)[0]
        return states.flatten(0, 1).index_select(0, layout.score_index)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        compute = self.choices["dtype"]
        if self.has_adapters or compute == "float32":
            return contextlib.nullcontext()
        # All weights are trained: they stay float32, and only the arithmetic is in half precision.
        return torch.autocast(self.device.type, dtype=getattr(torch, compute))

    def _score_nothing(self, temperature: float, entropies: EntropyMode) -> PolicyOutputs:
        token = np.zeros(1, dtype=np.int64)
        outputs = self._score(ScoringBatch((token,), (token,), (0,)), temperature, entropies)
        return PolicyOutputs(
            logps=outputs.logps[:0],
            entropies=None if outputs.entropies is None else outputs.entropies[:0],
            values=None if outputs.values is None else outputs.values[:0],
        )

    def _score_reference(self, batch: ScoringBatch, temperature: float) -> PolicyOutputs:
        if self._reference:
            outputs = self._reference[0](batch, temperature=temperature)
            return PolicyOutputs(logps=outputs.logps.to(self.device), entropies=None, values=None)
        if not self.has_adapters:
            raise RuntimeError("the policy has no reference: call keep_reference() before training")
        if batch.is_empty:
            return PolicyOutputs(logps=torch.zeros(0, 1, device=self.device), entropies=None, values=None)
        with self.model.disable_adapter():
            outputs = self._score(batch, temperature, "none")
        return PolicyOutputs(logps=outputs.logps, entropies=None, values=None)

    def keep_reference(self, *, moving: bool = False) -> None:
        """Make what the policy is now the reference: free with fresh adapters, else a frozen copy of all weights.

        `moving` always takes the copy, which `move_reference` needs.
        """
        if self.has_adapters and not self._reference and self._adapters_are_fresh() and not moving:
            return
        frozen = Policy(adapters.plain_copy(self.transformer), self.options, self.choices)
        own = {name: weight.detach().clone() for name, weight in self.named_full_weights()}
        load_weights(frozen.transformer, own)
        frozen.requires_grad_(False).eval()
        if self.options.reference_device == "cpu":
            frozen.to("cpu")
        self._reference[:] = [frozen]

    @torch.no_grad()
    def move_reference(self, alpha: float) -> None:
        """ref <- alpha * policy + (1 - alpha) * ref; alpha 1 resets it to the policy (ProRL, arXiv:2505.24864)."""
        own = dict(self.named_full_weights())
        for name, weight in self._reference[0].named_full_weights():
            weight.copy_(update_reference(weight, own[name].to(weight), alpha))

    def reference_state_dict(self) -> dict[str, torch.Tensor]:
        """Weights of a reference copy; empty where the reference is the base model itself."""
        return dict(self._reference[0].named_full_weights()) if self._reference else {}

    @torch.no_grad()
    def load_reference_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for name, weight in self._reference[0].named_full_weights() if state else ():
            weight.copy_(state[name])

    def _adapters_are_fresh(self) -> bool:
        return all(
            not torch.count_nonzero(layer.lora_B[adapter].weight)  # type: ignore[arg-type]
            for _, layer in adapters.lora_layers(self.model)
            for adapter in layer.lora_B
        )

    def named_full_weights(self) -> PolicyWeights:
        """(transformers' name, tensor) of every weight, adapters merged, tied weights once: what engines are given."""
        return PolicyWeights(self)

    def frozen_weight_names(self) -> frozenset[str]:
        """Names among `named_full_weights` whose tensors never change: neither trained nor merged with an adapter."""
        frozen = {id(parameter) for parameter in self.transformer.parameters() if not parameter.requires_grad}
        adapted = set(adapters.adapted_weight_names(self.transformer))
        return frozenset(
            name.replace(".base_layer", "")
            for name, parameter in self.transformer.named_parameters()
            if id(parameter) in frozen and name.replace(".base_layer", "") not in adapted
        )

    def trainable_state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the parameters that learn (adapters, value head, or all weights), by this module's names."""
        return {name: p.detach().clone() for name, p in self.named_parameters() if p.requires_grad}

    def load_trainable_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore `trainable_state_dict` exactly.

        Raises:
            InputError: if names or shapes differ from this policy's.
        """
        own = {name: p for name, p in self.named_parameters() if p.requires_grad}
        if own.keys() != state.keys():
            odd = sorted(own.keys() ^ state.keys())[:3]
            raise InputError(f"the checkpoint's weights do not fit this model (first differences: {odd})")
        with torch.no_grad():
            for name, parameter in own.items():
                if parameter.shape != state[name].shape:
                    raise InputError(
                        f"the checkpoint's {name} is {tuple(state[name].shape)}, not {tuple(parameter.shape)}"
                    )
                parameter.copy_(state[name])

    def save_adapter(self, folder: Path | str) -> None:
        """Write the adapters as peft does."""
        self.model.save_pretrained(folder)

    def save_merged(self, folder: Path | str) -> None:
        """Write a plain model folder (adapters merged) that transformers and vLLM load."""
        plain: Any = adapters.plain_copy(self.transformer)
        load_weights(plain, dict(self.named_full_weights()))
        plain.save_pretrained(folder)

    def add_critic(self) -> None:
        """Give the policy a value head that starts at zero, and for `critic=model` a trunk of its own."""
        hidden = self.transformer.get_output_embeddings().weight.shape[1]
        self.value_head = nn.Linear(hidden, 1, dtype=torch.float32, device=self.device)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        if self.options.critic == "model":
            backbone = self.transformer.base_model
            frozen = {id(p): p for p in backbone.parameters() if not p.requires_grad}
            self.critic = copy.deepcopy(backbone, frozen)


def load_weights(model: Any, weights: dict[str, torch.Tensor]) -> None:
    """Replace a plain model's parameters by these tensors (no copy), and tie what is tied."""
    for name, tensor in weights.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(tensor.detach(), requires_grad=False))
    model.tie_weights()


def logit_rule(config: transformers.PretrainedConfig) -> LogitRule:
    """The scale and softcap between the output embedding and the logits, from a model's configuration."""
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return LogitRule(scale=scale, softcap=getattr(config, "final_logit_softcapping", None))
