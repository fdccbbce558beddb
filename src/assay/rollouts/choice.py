"""Which decoder a model gets: the fast one where it gives the general one's logits, found out on a few tokens."""

from __future__ import annotations

import logging

import torch
import transformers

from assay.policy import attention
from assay.policy.model import logit_rule
from assay.rollouts.decoders import Decoder, GeneralDecoder
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
