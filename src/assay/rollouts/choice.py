"""Which decoder a model gets, and whether updates may use what it computed: found out on a few tokens."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

import numpy as np
import torch
import transformers

from assay.policy import ScoringBatch, attention
from assay.policy.loading import LOGP_TOLERANCE
from assay.policy.model import Policy, logit_rule
from assay.policy.recording import recordable
from assay.rollouts.decoders import Decoder, GeneralDecoder
from assay.rollouts.recorder import Recorder
from assay.rollouts.shared_cache import SharedCacheDecoder

logger = logging.getLogger(__name__)

# Largest difference of logits that rounding explains, relative to their spread.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


def choose_decoder(model: transformers.PreTrainedModel, float32_logits: bool = False) -> Decoder:
    """The shared-cache decoder if it works for this model; else, with a logged reason, the general one."""
    plain = str(model.config._attn_implementation).removeprefix("assay_")
    attention.register(plain)
    model.config._attn_implementation = attention.implementation_name(plain)
    rule = logit_rule(model.config)
    general = GeneralDecoder(model, rule, float32_logits)
    fast = SharedCacheDecoder(model, rule, float32_logits)
    try:
        difference = _difference(fast, general, int(model.config.vocab_size))
    except (attention.SharingUnsupported, TypeError, AttributeError) as error:
        logger.warning("prompts are cached once per completion: %s", " ".join(str(error).split())[:300])
        return general
    if difference <= _TOLERANCE[model.dtype]:
        return fast
    logger.warning("prompts are cached once per completion: sharing them changes logits by %.2g", difference)
    return general


def choose_recorder(policy: Policy, decoder: Decoder, limit: int) -> Recorder | None:
    """What keeps up to `limit` bytes of layers' outputs for the update of `policy`, listening at `decoder`'s model.

    None where the policy would not use them; and, with a logged reason, where using them changes log-probs.
    """
    names = recordable(policy.transformer) if policy.device.type == "cpu" else []
    can = policy.shares_prefixes and not policy.options.gradient_checkpointing and not policy.options.lora_dropout
    if not limit or not names or not can or not isinstance(decoder, SharedCacheDecoder):
        return None
    try:
        decoder.recorder = recorder = Recorder(decoder.model, names, limit)
        reason = _recording_fault(policy, decoder, recorder)
    except (attention.SharingUnsupported, TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
    heard, decoder.recorder = decoder.recorder, None
    decoder.stop()
    if heard and reason is None:
        heard.limit = limit
        return heard
    if heard:
        heard.close()
    logger.warning("updates compute all layers again: %s", reason)
    return None


@torch.no_grad()
def _recording_fault(policy: Policy, decoder: SharedCacheDecoder, recorder: Recorder) -> str | None:
    """Score a scripted wave with its recording and without; what is wrong, if anything."""
    vocab_size = int(policy.config.vocab_size)
    tokens = torch.randint(vocab_size, (64,), generator=torch.Generator().manual_seed(1)).tolist()
    prompts, rows = [tokens[:11], tokens[11:15]], [tokens[start : start + 4] for start in (15, 19, 23, 27)]
    # The few tokens are recorded whatever the limit is, and given back.
    recorder.limit, recorder.wanted = sys.maxsize, True
    with torch.inference_mode():
        decoder.start(prompts, [2, 2], 4)
        for step in range(3):
            decoder.step(torch.tensor([row[step] for row in rows], device=policy.device))
    traces = tuple(recorder.trace(row) for row in range(4))
    batch = ScoringBatch(tuple(map(np.array, prompts)), tuple(map(np.array, rows)), (0, 0, 1, 1))
    traced = replace(batch, traces=traces)
    if not policy.replays(traced):
        return "the sampler's outputs do not cover the tokens"
    difference = float((policy(batch).logps - policy(traced).logps).abs().mean())
    recorder.forget()
    if difference <= LOGP_TOLERANCE[policy.choices["dtype"]]:
        return None
    return f"reusing the sampler's changes log-probs by {difference:.3g} nats"


@torch.inference_mode()
def _difference(fast: Decoder, general: Decoder, vocab_size: int) -> float:
    """Mean difference of logits, relative to their spread, over a scripted wave that drops rows."""
    tokens = torch.randint(vocab_size, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    prompts, script = [tokens[:11], tokens[11:15]], tokens[15:]
    seen = []
    for decoder in (fast, general):
        logits = [decoder.start(prompts, [2, 2], 5)]
        for step in range(4):
            alive = len(logits[-1])
            if step == 2:
                rows = torch.tensor([0, 3], device=logits[0].device)
                decoder.keep(rows)
                alive = len(rows)
            logits.append(decoder.step(torch.tensor(script[:alive], device=logits[0].device)))
            script = script[alive:] + script[:alive]
        decoder.stop()
        script = tokens[15:]
        seen.append(torch.cat(logits))
    return float((seen[0] - seen[1]).abs().mean() / seen[1].std())
