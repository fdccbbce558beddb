"""What assay adds to a vLLM worker: taking weights, and reading back what the model really computes with.

`vllm serve --worker-extension-cls assay.rollouts.vllm_worker.PolicyWorker` mixes this class into the worker, which may
run in another environment than the trainer: nothing here imports more than torch, safetensors and vLLM.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

# The one adapter that a server knows.
ADAPTER_NAME, ADAPTER_ID = "policy", 1
# Columns of each matrix that are read back: enough to see any update, few enough to do it at every synchronisation.
COLUMNS = 4

Digest = list[Any]


def digest(values: torch.Tensor) -> Digest:
    """[16 hex digits of the float32 bits, norm]: the first proves equality, the second tells how far off it is."""
    exact = values.detach().to("cpu", torch.float32).contiguous()
    return [hashlib.blake2b(exact.numpy().tobytes(), digest_size=8).hexdigest(), float(exact.double().norm())]


def sample(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A weight's columns that are read back, in the engine's precision; a vector is read whole."""
    return (weight[:, columns(weight.shape[1])] if weight.ndim == 2 else weight).to(dtype)


def columns(width: int) -> list[int]:
    """Positions of the columns that are read back, spread over the width.

    >>> columns(100), columns(2)
    ([0, 33, 66, 99], [0, 1])
    """
    count = min(COLUMNS, width)
    return sorted({index * (width - 1) // max(1, count - 1) for index in range(count)})


class PolicyWorker:
    """Methods for `collective_rpc`; `self` is vLLM's worker."""

    model_runner: Any
    vllm_config: Any

    def assay_facts(self) -> dict[str, Any]:
        """What a trainer must know about this server before it sends weights."""
        config, lora = self.vllm_config.model_config, self.vllm_config.lora_config
        text = config.hf_text_config
        return {
            "dtype": str(config.dtype).removeprefix("torch."),
            "device": str(self.model_runner.device.type),
            "model": str(config.model),
            "vocab_size": int(text.vocab_size),
            "layers": int(text.num_hidden_layers),
            "hidden_size": int(text.hidden_size),
            "context": int(config.max_model_len),
            "logprobs_mode": str(getattr(config.logprobs_mode, "value", config.logprobs_mode)),
            "max_lora_rank": int(lora.max_lora_rank) if lora is not None else 0,
            "tensor_parallel": int(self.vllm_config.parallel_config.tensor_parallel_size),
            "max_rows": int(self.vllm_config.scheduler_config.max_num_seqs),
        }

    def assay_load_file(self, path: str) -> float:
        """Replace all weights by those of a safetensors file in transformers' names; returns seconds."""
        from safetensors import safe_open

        def stored() -> Iterator[tuple[str, torch.Tensor]]:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dictionary
                    yield name, file.get_tensor(name)

        return self.assay_load(stored())

    def assay_load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> float:
        """Replace all weights, in checkpoint form; returns seconds."""
        started = time.monotonic()
        self.model_runner.reload_weights(weights_iterator=weights)
        self.assay_repack_tied_head()
        return time.monotonic() - started

    def assay_repack_tied_head(self) -> None:
        """vLLM's CPU build packs linear weights; a reload packs a tied output embedding's table, but not its head."""
        model = self.model_runner.get_model()
        head = plain(getattr(model, "lm_head", None))
        tied = getattr(self.vllm_config.model_config.hf_text_config, "tie_word_embeddings", False)
        if head is None or not tied or self.model_runner.device.type != "cpu":
            return
        head.weight = plain(embedding_of(model)).weight
        head.quant_method.process_weights_after_loading(head)

    def assay_load_adapter(self, folder: str) -> float:
        """Replace the adapter by the one in a new folder (vLLM keeps the old one for a folder it knows); seconds."""
        from vllm.lora.request import LoRARequest

        if not (Path(folder) / "adapter_config.json").is_file():
            raise FileNotFoundError(f"{folder} has no adapter_config.json; do trainer and server see one file system?")
        started = time.monotonic()
        # Only this call may ask to load in place: a request that carries the flag loads from disk at every token.
        self.model_runner.add_lora(LoRARequest(ADAPTER_NAME, ADAPTER_ID, folder, load_inplace=True))
        return time.monotonic() - started

    def assay_digests(self) -> dict[str, Digest]:
        """Digests by transformers' names of the weights that this model computes with; fused matrices are taken apart.

        Sharded matrices (tensor parallelism) and fused experts are left out.
        """
        found: dict[str, Digest] = {}
        model = self.model_runner.get_model()
        dtype = self.vllm_config.model_config.dtype
        for name, module in model.named_modules():
            if isinstance(getattr(module, "weight", None), torch.Tensor):
                for part, values in read_parts(name.removesuffix(".base_layer"), module, dtype, model):
                    found[part] = digest(values)
        return found

    def assay_adapter_digests(self) -> dict[str, Digest]:
        """Digests by transformers' names of the adapter matrices in the buffers that the kernels read."""
        manager = getattr(self.model_runner, "lora_manager", None)
        if manager is None or ADAPTER_ID not in manager.list_adapters():
            return {}
        manager = manager._adapter_manager
        slot = manager.lora_index_to_id.index(ADAPTER_ID)
        rank = int(manager.get_adapter(ADAPTER_ID).rank)
        found: dict[str, Digest] = {}
        for name, module in manager.modules.items():
            downs, ups = getattr(module, "lora_a_stacked", ()), getattr(module, "lora_b_stacked", ())
            if getattr(plain(module), "tp_size", 1) > 1:
                continue
            for part, down, up in zip(part_names(name, self.model_runner.get_model()), downs, ups):
                if down.ndim == 4:
                    found[f"{part}.lora_A"] = digest(down[slot, 0, :rank])
                    found[f"{part}.lora_B"] = digest(up[slot, 0, :, :rank])
        return found


def plain(module: Any) -> Any:
    """The layer under a LoRA wrapper."""
    return getattr(module, "base_layer", module)


def embedding_of(model: Any) -> Any:
    """The input embedding, wherever the architecture keeps it."""
    found = [module for name, module in model.named_modules() if name.rpartition(".")[2] == "embed_tokens"]
    if not found:
        raise RuntimeError(f"{type(model).__name__} has no embed_tokens; its tied head cannot be repacked")
    return found[0]


def part_names(name: str, model: Any) -> list[str]:
    """transformers' names of the layers that vLLM fused into `name`."""
    owner, _, leaf = name.rpartition(".")
    parts = getattr(model, "packed_modules_mapping", {}).get(leaf, [leaf])
    return [f"{owner}.{part}" if owner else part for part in parts]


def read_parts(name: str, module: Any, dtype: torch.dtype, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(transformers' name of the weight, the values that are compared) for each layer inside a module."""
    values = read(module, dtype)
    if values is None:
        return
    rows = getattr(module, "org_vocab_size", None) or len(values)
    names = part_names(name, model)
    sizes = list(module.output_partition_sizes) if len(names) > 1 else [rows]
    for part, chunk in zip(names, values[: sum(sizes)].split(sizes), strict=True):
        yield f"{part}.weight", chunk


def read(module: Any, dtype: torch.dtype) -> torch.Tensor | None:
    """What `sample` would give of the weight that this module computes with.

    vLLM's CPU build multiplies with a packed copy, which is read by multiplying unit vectors with it: the tensor called
    `weight` may be empty, or say something else. An embedding that only looks rows up has no use for its copy.
    """
    weight = module.weight
    if getattr(module, "tp_size", 1) > 1 or weight.ndim > 2:
        return None
    is_table = type(module).__name__ == "VocabParallelEmbedding"
    if is_table or not hasattr(module, "cpu_linear"):
        return sample(weight, dtype) if weight.numel() else None
    width = getattr(module, "input_size_per_partition", None) or module.embedding_dim
    chosen = columns(width)
    units = torch.zeros(len(chosen), width, dtype=dtype)
    units[range(len(chosen)), chosen] = 1
    return module.quant_method.apply(module, units, bias=None).T
