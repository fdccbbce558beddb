"""Requests and completions in vLLM's terms, the same for both engines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.records import Completion, Finish, Segment, VersionSpan
from assay.rollouts.protocol import Request

# LoRA ranks that vLLM has kernels for.
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def sampling_params(request: Request, stop_token_ids: Iterable[int]) -> dict[str, Any]:
    """Arguments of vLLM's SamplingParams. Ends are ours alone: what vLLM thinks is the EOS token is ignored."""
    sampling = request.sampling
    return {
        "n": request.n,
        "seed": spread(request.seed),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "logprobs": 0,
        "ignore_eos": True,
        "stop_token_ids": sorted({*stop_token_ids, *request.stop_token_ids}),
        "detokenize": False,
        "skip_special_tokens": False,
    }


def spread(seed: int) -> int:
    """vLLM draws completion g with seed + g: neighbouring seeds must not give two requests the same completions.

    >>> abs(spread(1) - spread(2)) > 2**32
    True
    """
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=7).digest(), "big")


def probe_params() -> dict[str, Any]:
    """Arguments that make vLLM score a prompt: the log-probs of its tokens from the second on."""
    return {"n": 1, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "ignore_eos": True, "detokenize": False}


def check_request(request: Request, context: int | None) -> None:
    """Raise InputError for a request that no vLLM engine can answer."""
    if not request.token_ids or request.n < 1 or request.sampling.max_tokens < 1:
        raise InputError("a request needs at least one prompt token, one completion and one token to write")
    if request.media:
        raise InputError("the vLLM engines do not pass media on yet; set data.fields.media to none")
    if context is not None and len(request.token_ids) + request.sampling.max_tokens > context:
        raise InputError(
            f"a prompt of {len(request.token_ids)} tokens and {request.sampling.max_tokens} new ones exceed the "
            f"engine's {context} positions; shorten prompts or lower max_completion_length (or raise "
            "rollout.vllm.max_model_len)"
        )


def completion(
    token_ids: Sequence[int], logps: Sequence[float], finish: str | None, versions: Iterable[tuple[int, str]]
) -> Completion:
    """One completion; `versions` are (first token, label) of each stretch written by one version of the weights."""
    tokens = np.array(token_ids, dtype=np.int64)
    segment = Segment(tokens, np.ones(len(tokens), dtype=bool), np.array(logps, dtype=np.float32))
    spans = tuple(VersionSpan(start, int(label)) for start, label in versions if label.lstrip("-").isdigit())
    reasons = {"stop": Finish.STOP, "length": Finish.LENGTH}
    return Completion([segment], reasons.get(finish or "", Finish.ABORT), policy_versions=spans)


def lora_rank(rank: int) -> int:
    """The smallest rank that vLLM has kernels for and that holds `rank`.

    >>> lora_rank(1), lora_rank(16), lora_rank(17)
    (8, 16, 32)
    """
    fitting = [known for known in LORA_RANKS if known >= rank]
    if not fitting:
        raise InputError(
            f"model.lora_rank is {rank}, and vLLM serves ranks up to {LORA_RANKS[-1]}; lower it, or set "
            "rollout.vllm.adapters=false"
        )
    return fitting[0]
