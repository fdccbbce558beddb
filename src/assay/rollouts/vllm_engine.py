"""Completions by vLLM in this process, on the devices that the trainer uses too."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.errors import InputError, RunError
from assay.policy.model import Policy
from assay.policy.weights import PolicyWeights
from assay.records import Completion
from assay.rollouts.options import RolloutOptions
from assay.rollouts.protocol import Request
from assay.rollouts.vllm_command import CPU_BLOCK, WORKER
from assay.rollouts.vllm_options import SLOW_ADAPTERS, installed_version
from assay.rollouts.vllm_requests import check_request, completion, lora_rank, probe_params, sampling_params
from assay.rollouts.vllm_weights import Recorded, Weights, adapter_digests, check_version, compare, tied_head
from assay.rollouts.vllm_worker import ADAPTER_ID, ADAPTER_NAME

logger = logging.getLogger(__name__)


class VllmEngine:
    """`Engine` over `vllm.LLM`. Completion g of a request draws with vLLM's own generator, seeded by (seed, g).

    Weights arrive by `push`, in memory, or as adapters alone, and are read back at every push: a difference ends the
    run. Requests in flight go on with the new weights from their next token (their cache is computed anew) and say so
    in `policy_versions`. On a GPU the engine sleeps while nothing is to be written; vLLM's CPU build cannot sleep.

    Args:
        llm: a `vllm.LLM` with the worker extension (see `from_policy`).
        stop_token_ids: tokens that end a completion, beyond a request's own.
        head: see `vllm_weights.tied_head`.
        adapters: serve LoRA adapters over fixed base weights instead of whole weights.
        sleeps: give GPU memory back whenever all requests are done.
    """

    is_concurrent = False

    def __init__(
        self, llm: Any, stop_token_ids: Iterable[int], *, head: dict[str, str], adapters: bool, sleeps: bool = False
    ) -> None:
        self.llm = llm
        self.stop_token_ids = frozenset(stop_token_ids)
        self.head = head
        self.takes_adapters = adapters
        self.sleeps = sleeps
        self.facts: dict[str, Any] = llm.collective_rpc("assay_facts")[0]
        self.dtype: torch.dtype = getattr(torch, self.facts["dtype"])
        self._folder = Path(tempfile.mkdtemp(prefix="assay-vllm-"))
        self._adapter: Path | None = None
        self._open: dict[str, int] = {}
        self._done: deque[tuple[int, list[Completion]]] = deque()
        self._handles = itertools.count()
        self._asleep = False
        self._running = threading.Event()
        self._running.set()
        # Held while the engine makes a step or takes weights.
        self._lock = threading.RLock()

    @classmethod
    def from_policy(cls, policy: Policy, stop_token_ids: Iterable[int], rollout: RolloutOptions) -> VllmEngine:
        """Start vLLM beside a policy in one process, holding its present weights as version 0.

        Raises:
            InputError: if vLLM is missing, of an unknown version, or does not take this model.
        """
        installed_version()
        adapters = policy.has_adapters and rollout.vllm.adapters
        on_cpu = policy.device.type == "cpu"
        if adapters and on_cpu:
            logger.warning(SLOW_ADAPTERS)
        settings = llm_settings(policy, rollout, adapters)
        engine = cls(
            start_llm(settings),
            stop_token_ids,
            head=tied_head(policy.transformer),
            adapters=adapters,
            sleeps=rollout.vllm.sleep and not on_cpu,
        )
        engine.push(policy.named_full_weights(), 0)
        return engine

    def submit(self, request: Request) -> int:
        check_request(request, self.facts["context"])
        handle = next(self._handles)
        from vllm import SamplingParams

        params = SamplingParams(**sampling_params(request, self.stop_token_ids), flat_logprobs=True)
        params.output_kind = final_only()
        with self._lock:
            self.wake()
            self._open[str(handle)] = handle
            self.llm.llm_engine.add_request(
                str(handle), {"prompt_token_ids": list(request.token_ids)}, params, lora_request=self._lora()
            )
        return handle

    def completed(self) -> Iterator[tuple[int, list[Completion]]]:
        while self._open or self._done:
            if not self._done:
                self._running.wait()
                self._step()
            while self._done:
                yield self._done.popleft()
        self.sleep()

    def _step(self) -> None:
        """One token of every request that runs."""
        with self._lock:
            if self._open and not self.llm.llm_engine.has_unfinished_requests():
                raise RunError(f"vLLM has lost {len(self._open)} requests; the last checkpoint is kept, run it again")
            for output in self.llm.llm_engine.step():
                handle = self._open.pop(output.request_id, None)
                if handle is not None and output.finished:
                    written = sorted(output.outputs, key=lambda item: item.index)
                    self._done.append((handle, [made(item) for item in written]))

    def cancel(self, handles: Iterable[int]) -> None:
        names = [str(handle) for handle in handles if str(handle) in self._open]
        with self._lock:
            self.llm.llm_engine.abort_request(names)
            for name in names:
                del self._open[name]

    def push(self, weights: Weights, version: int) -> None:
        """Take the weights, and read them back.

        Raises:
            RunError: if what the engine holds afterwards is not what was sent.
        """
        with self._lock:
            self.wake()
            core = self.llm.llm_engine
            if self.takes_adapters:
                expected, found = self._push_adapters(weights), "assay_adapter_digests"
            else:
                recorded = Recorded(weights, self.dtype, self.head)
                self.llm.collective_rpc("assay_load", args=(recorded,))
                expected, found = recorded.expected, "assay_digests"
            core.reset_prefix_cache(reset_running_requests=True)
            core.set_weight_version(str(version))
            compare(expected, self.llm.collective_rpc(found)[0], "vLLM", version)
            check_version(core.get_weight_version(), version, "vLLM")

    def _push_adapters(self, weights: Weights) -> dict[str, Any]:
        if not isinstance(weights, PolicyWeights):
            raise TypeError("this engine serves adapters: push policy.named_full_weights() itself, not its items")
        # A folder that vLLM has seen is not read again.
        folder = Path(tempfile.mkdtemp(prefix="adapter-", dir=self._folder))
        weights.save_adapters(folder)
        self.llm.collective_rpc("assay_load_adapter", args=(str(folder),))
        if self._adapter is not None:
            shutil.rmtree(self._adapter)
        self._adapter = folder
        return adapter_digests(weights, self.dtype)

    def probe(self, token_ids: Iterable[int]) -> list[tuple[str, np.ndarray]]:
        """The engine's name, and [T - 1] log-probs (nats, temperature 1) of a sequence's tokens from the second on.

        Nothing else may run: vLLM 0.32's CPU build cannot score a prompt beside other requests with an adapter.
        """
        from vllm import SamplingParams

        if self._open:
            raise RuntimeError("probe() while requests are in flight")
        tokens = list(token_ids)
        with self._lock:
            self.wake()
            (output,) = self.llm.generate(
                [{"prompt_token_ids": tokens}],
                SamplingParams(**probe_params()),
                lora_request=self._lora(),
                use_tqdm=False,
            )
        scores = output.prompt_logprobs[1:]
        logps = [scores[index][token].logprob for index, token in enumerate(tokens[1:])]
        return [("vLLM", np.array(logps, dtype=np.float32))]

    def pause(self) -> None:
        """Stop before the next token, and return once no token is in the making."""
        self._running.clear()
        with self._lock:
            pass

    def resume(self) -> None:
        self._running.set()

    def sleep(self) -> None:
        """Give GPU memory back until `wake`: weights move to the CPU's memory, the cache is dropped."""
        with self._lock:
            if self.sleeps and not self._asleep and not self._open:
                self.llm.sleep(level=1)
                self._asleep = True

    def wake(self) -> None:
        if self._asleep:
            self.llm.wake_up()
            self._asleep = False

    def close(self) -> None:
        self.cancel(list(self._open.values()))
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        shutil.rmtree(self._folder, ignore_errors=True)
        stop_vllm()

    def _lora(self) -> Any:
        if self._adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(ADAPTER_NAME, ADAPTER_ID, str(self._adapter))


def made(written: Any) -> Completion:
    """A vLLM CompletionOutput as ours."""
    spans = [(span.start, span.version) for span in written.weight_versions or ()]
    return completion(written.token_ids, written.logprobs.logprobs, written.finish_reason, spans)


def llm_settings(policy: Policy, rollout: RolloutOptions, adapters: bool) -> dict[str, Any]:
    """Arguments of `vllm.LLM` for a policy in this process."""
    from assay.policy.builtin import resolve_model_path

    options = rollout.vllm
    settings: dict[str, Any] = {
        "model": resolve_model_path(policy.options.path),
        "revision": policy.options.revision,
        "trust_remote_code": policy.options.trust_remote_code,
        "skip_tokenizer_init": True,
        "dtype": policy.choices["dtype"],
        "max_model_len": options.max_model_len,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "enable_prefix_caching": True,
        "worker_extension_cls": WORKER,
        "disable_log_stats": True,
    }
    if rollout.max_rows:
        settings["max_num_seqs"] = rollout.max_rows
    if adapters:
        rank = lora_rank(policy.options.lora_rank)
        settings |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
    if policy.device.type == "cpu":
        size = int(rollout.kv_cache_gib * 2**30)
        settings |= {"enforce_eager": True, "block_size": CPU_BLOCK, "kv_cache_memory_bytes": size}
    else:
        settings |= {"gpu_memory_utilization": options.memory_share, "enable_sleep_mode": options.sleep}
    return settings


def start_llm(settings: dict[str, Any]) -> Any:
    """`vllm.LLM`, without a process of its own, and without the traces that its start leaves in this one."""
    if torch.distributed.is_initialized():
        raise InputError(
            "rollout.engine=vllm is for one process; with several, start servers on other GPUs (`assay serve`) and use "
            "rollout.engine=vllm-server"
        )
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }.items():
        os.environ.setdefault(name, value)
    # vLLM's CPU worker replaces this function by one that does nothing.
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        import vllm

        return vllm.LLM(**settings)
    except (ValueError, NotImplementedError) as error:
        raise InputError(
            f"vLLM does not start with {settings['model']}: {' '.join(str(error).split())[:400]}"
        ) from error
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)


def stop_vllm() -> None:
    """Leave vLLM's process groups, so that another engine or a trainer may start here."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()


def final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY
