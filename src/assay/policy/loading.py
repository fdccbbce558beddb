"""From options to a policy: path, dtype, adapters, critic, and the check that the fast path equals the plain one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers

from assay.errors import InputError
from assay.policy import adapters, attention
from assay.policy.batch import ScoringBatch
from assay.policy.builtin import resolve_model_path
from assay.policy.model import Policy
from assay.policy.options import ModelOptions
from assay.policy.precision import DTYPES, measure_fastest_dtype

logger = logging.getLogger(__name__)

# Largest mean difference of log-probs (nats) that rounding explains, by compute dtype.
LOGP_TOLERANCE = {"float64": 1e-8, "float32": 1e-4, "bfloat16": 0.15, "float16": 0.03}


def load_policy(
    options: ModelOptions,
    *,
    device: torch.device | str | None = None,
    seed: int = 0,
    choices: Mapping[str, Any] | None = None,
) -> Policy:
    """Load the model that learns.

    Args:
        options: the `model:` section.
        device: where it lives; default the first accelerator, else CPU.
        seed: of the adapters' random start.
        choices: `Policy.choices` of an earlier start of the same run; measured and checked anew where absent.

    Raises:
        InputError: if the model cannot be found or loaded, or its adapters cannot be placed.
    """
    attention.register(options.attention)
    target = torch.device(device) if device is not None else default_device()
    found = dict(choices or {})
    if "dtype" not in found:
        found["dtype"] = measure_fastest_dtype(target) if options.dtype == "auto" else options.dtype
    found.setdefault("prefix_sharing", options.prefix_sharing)
    model = _load_transformer(options, DTYPES[found["dtype"]] if options.lora else torch.float32)
    _disable_dropout(model)
    model.requires_grad_(not options.lora)
    model.to(target)  # type: ignore[arg-type]
    model.config._attn_implementation = attention.implementation_name(options.attention)
    with torch.random.fork_rng(devices=[target] if target.type == "cuda" else []):
        torch.manual_seed(seed)
        wrapped = adapters.add_adapters(model, options) if options.lora else model
        policy = Policy(wrapped, options, found)
        if options.critic != "none":
            policy.add_critic()
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    policy.train()
    if choices is None and found["prefix_sharing"]:
        found["prefix_sharing"] = prefix_sharing_works(policy)
    return policy


def load_tokenizer(options: ModelOptions) -> transformers.PreTrainedTokenizerBase:
    """The model's tokenizer.

    Raises:
        InputError: if there is none at the model's path.
    """
    path = resolve_model_path(options.path)
    try:
        return transformers.AutoTokenizer.from_pretrained(
            path, revision=options.revision, trust_remote_code=options.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise InputError(f"model.path is {options.path!r}: no tokenizer could be loaded: {_line(error)}") from error


def stop_token_ids(model: Any, tokenizer: transformers.PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token that ends a completion: the EOS ids of generation config, config and tokenizer, and the turn's end.

    The turn's end is the last special token that the chat template writes after an assistant's message.
    """
    ids: set[int] = set()
    for source in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        declared = getattr(source, "eos_token_id", None)
        ids |= set(declared) if isinstance(declared, list | tuple) else {declared} if declared is not None else set()
    if tokenizer.eos_token_id is not None:
        ids.add(int(tokenizer.eos_token_id))
    ids |= turn_end(tokenizer)
    return tuple(sorted(int(token) for token in ids))


def turn_end(tokenizer: transformers.PreTrainedTokenizerBase) -> set[int]:
    """The token that ends an assistant's message under the chat template; empty where there is none."""
    if not getattr(tokenizer, "chat_template", None):
        return set()
    marker = "assaymarker"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": marker}]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    special = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    after = tokenizer(text.rpartition(marker)[2], add_special_tokens=False)["input_ids"]
    return {next(token for token in after if token in special)} if special & set(after) else set()


def default_device() -> torch.device:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def _load_transformer(options: ModelOptions, dtype: torch.dtype) -> transformers.PreTrainedModel:
    path = resolve_model_path(options.path)
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            path,
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
            dtype=dtype,
            attn_implementation=options.attention,
        )
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"model.path is {options.path!r}: the model could not be loaded: {_line(error)}") from error


def _disable_dropout(model: torch.nn.Module) -> None:
    """Completions were sampled without dropout; scoring them with it would bias every ratio."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


@torch.no_grad()
def prefix_sharing_works(policy: Policy, batch: ScoringBatch | None = None) -> bool:
    """Score one batch both ways; False, with a logged reason, where this model's shared path differs or fails."""
    batch = batch or probe_batch(int(policy.config.vocab_size))
    was_training = policy.training
    policy.eval()
    try:
        policy.choices["prefix_sharing"] = False
        plain = policy(batch).logps
        policy.choices["prefix_sharing"] = True
        shared = policy(batch).logps
    except (attention.SharingUnsupported, TypeError) as error:
        logger.warning("prompts are scored once per completion: %s", _line(error))
        return False
    finally:
        policy.train(was_training)
    difference = float((plain - shared).abs().sum() / batch.mask().sum())
    if difference <= LOGP_TOLERANCE[policy.choices["dtype"]]:
        return True
    logger.warning("prompts are scored once per completion: sharing them changes log-probs by %.3g nats", difference)
    return False


def probe_batch(vocab_size: int) -> ScoringBatch:
    """Random tokens: two prompts, rows of several lengths, one of a single token."""
    random = np.random.default_rng(0)
    prompts = tuple(random.integers(0, vocab_size, size) for size in (24, 9))
    rows = tuple(random.integers(0, vocab_size, size) for size in (12, 1, 5, 9))
    return ScoringBatch(prompts, rows, (0, 0, 1, 1))
