"""Tiny random models and a byte-level tokenizer with a chat template, made on the spot: for tests and dry runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PAD, BOS, TURN, END = "<|pad|>", "<|bos|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}

# name -> (configuration class, its settings)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _COMMON | {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", {k: v for k, v in _COMMON.items() if k != "head_dim"}),
    "qwen3": ("Qwen3Config", _COMMON),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        _COMMON | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1},
    ),
    "mistral": ("MistralConfig", _COMMON | {"sliding_window": 6}),
    "gemma2": (
        "Gemma2Config",
        _COMMON | {"sliding_window": 6, "query_pre_attn_scalar": 8, "final_logit_softcapping": 5.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        _COMMON
        | {
            "sliding_window": 6,
            "query_pre_attn_scalar": 8,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}),
}


def tiny_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Every byte is a token (ids 0-255); pad, bos, turn start and turn end (the EOS) follow: 260 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=END, additional_special_tokens=[TURN]
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_config(architecture: str, **changes: Any) -> transformers.PretrainedConfig:
    """A two-layer configuration of a known architecture over the toy vocabulary; `changes` override its settings."""
    class_name, settings = ARCHITECTURES[architecture]
    tokenizer = tiny_tokenizer()
    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id}
    merged = settings | ids | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id} | changes
    return getattr(transformers, class_name)(**merged)


def tiny_model(architecture: str = "llama", *, seed: int = 0, **changes: Any) -> transformers.PreTrainedModel:
    """A random float32 model. Weights are large enough for distributions that are far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(tiny_config(architecture, **changes))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim >= 2:
                    parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
                elif "bias" in name:
                    parameter.normal_(0.0, 0.1)
        model.tie_weights()
    return model.eval()


def save_tiny(folder: Path | str, architecture: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Write a tiny model and its tokenizer to `folder`, loadable like any other model folder."""
    folder = Path(folder)
    tiny_model(architecture, seed=seed, **changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
