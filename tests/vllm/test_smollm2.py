"""A real model (SmolLM2-135M, tied embeddings) with real prompts: float32 to rounding, bfloat16 to its own rounding."""

import numpy as np
import pytest
from vllm_helpers import disturb, scored

from assay.policy import ModelOptions, load_policy, load_tokenizer
from assay.ranks import Ranks
from assay.rollouts.build import build_engine
from assay.rollouts.canary import prove
from assay.rollouts.options import RolloutOptions
from assay.rollouts.protocol import Request, Sampling, generate
from assay.rollouts.vllm_options import VllmOptions

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROLLOUT = RolloutOptions(engine="vllm", kv_cache_gib=0.5, vllm=VllmOptions(max_model_len=512))


@pytest.mark.parametrize(
    ("dtype", "lora", "mean"),
    [
        pytest.param("float32", False, 2e-5, marks=pytest.mark.slow),
        ("bfloat16", True, 0.1),
    ],
)
def test_what_is_sampled_is_what_is_scored_before_and_after_a_push(dtype, lora, mean):
    model = ModelOptions(path="smollm2", dtype=dtype, lora=lora)
    policy = load_policy(model, device="cpu")
    tokenizer = load_tokenizer(model)
    chats = [[{"role": "user", "content": text}] for text in ("Name three rivers.", "Write a line about the sea.")]
    asked = [
        Request(
            tuple(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]), Sampling(24), 3, seed
        )
        for seed, chat in enumerate(chats)
    ]
    # Building includes the canary and reading back all weights.
    engine = build_engine(policy, [tokenizer.eos_token_id], ROLLOUT)
    try:
        assert off(policy, asked, generate(engine, asked)) < mean
        disturb(policy, size=0.003 if not lora else 0.02)
        stale = off(policy, asked, generate(engine, asked))
        engine.push(policy.named_full_weights(), 1)
        fresh = off(policy, asked, generate(engine, asked))
        assert fresh < mean
        assert stale > 3 * fresh
        assert prove(engine, policy, Ranks()).restored < 3 * mean
    finally:
        engine.close()


def off(policy, asked, results):
    """Mean |engine - policy| of the log-probs of all sampled tokens."""
    policy.eval()
    return float(
        np.concatenate(
            [
                np.abs(scored(policy, request.token_ids, item.segments[0].token_ids) - item.segments[0].sampling_logps)
                for request, group in zip(asked, results, strict=True)
                for item in group
            ]
        ).mean()
    )
