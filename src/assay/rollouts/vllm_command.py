"""The `vllm serve` command line that training needs, from a recipe's options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from assay.policy.builtin import resolve_model_path
from assay.policy.options import ModelOptions
from assay.rollouts.options import RolloutOptions
from assay.rollouts.vllm_requests import lora_rank

WORKER = "assay.rollouts.vllm_worker.PolicyWorker"
# vLLM's prefix cache works in whole blocks; its CPU default of 128 tokens is longer than many prompts.
CPU_BLOCK = 32


@dataclass(frozen=True)
class ServeCommand:
    """One server: where it will listen, what to run, and which environment variables it needs."""

    url: str
    arguments: tuple[str, ...]
    environment: dict[str, str]

    def line(self) -> str:
        """As one would type it."""
        before = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.environment.items())
        return f"{before} {shlex.join(self.arguments)}"


def serve_commands(
    model: ModelOptions,
    rollout: RolloutOptions,
    urls: Sequence[str],
    *,
    gpus: int,
    extra: Sequence[str] = (),
) -> list[ServeCommand]:
    """A command for each URL; with GPUs, server i gets the i-th. `extra` are words for vLLM itself."""
    commands = []
    for index, url in enumerate(urls):
        environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if uses_adapters(model, rollout):
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if gpus and len(urls) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = str(index % gpus)
        if not gpus:
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        flags = serve_flags(model, rollout, url, on_cpu=not gpus)
        arguments = ("vllm", "serve", resolve_model_path(model.path), *flags, *extra)
        commands.append(ServeCommand(url, arguments, environment))
    return commands


def uses_adapters(model: ModelOptions, rollout: RolloutOptions) -> bool:
    return model.lora and rollout.vllm.adapters


def serve_flags(model: ModelOptions, rollout: RolloutOptions, url: str, *, on_cpu: bool) -> list[str]:
    """Flags of `vllm serve`."""
    where = urlsplit(url)
    dtype = model.dtype if model.dtype != "auto" else "float32" if on_cpu else "bfloat16"
    flags = ["--host", str(where.hostname), "--port", str(where.port), "--dtype", dtype]
    # What it reports must be what it samples from, and nothing may change how it samples.
    flags += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    flags += ["--enable-prefix-caching", "--enable-scale-out", "--worker-extension-cls", WORKER]
    flags += ["--disable-uvicorn-access-log"]
    if model.revision:
        flags += ["--revision", model.revision]
    if model.trust_remote_code:
        flags += ["--trust-remote-code"]
    if rollout.vllm.max_model_len:
        flags += ["--max-model-len", str(rollout.vllm.max_model_len)]
    if rollout.max_rows:
        flags += ["--max-num-seqs", str(max(rollout.max_rows, rollout.num_generations))]
    if uses_adapters(model, rollout):
        flags += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(lora_rank(model.lora_rank))]
    elif rollout.vllm.weight_sync == "nccl":
        flags += ["--weight-transfer-config", '{"backend": "nccl"}']
    if on_cpu:
        memory = int(rollout.kv_cache_gib * 2**30)
        flags += ["--enforce-eager", "--block-size", str(CPU_BLOCK), "--kv-cache-memory-bytes", str(memory)]
    return flags
