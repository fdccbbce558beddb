"""A sequence-classification model as a reward function: its first logit on prompt plus completion."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from assay.errors import InputError


class RewardModel:
    """`logits[:, 0]` of a sequence-classification model, as TRL does it; a score without a verdict.

    `model` is a path or hub id, or a loaded module together with `tokenizer` (object or path; by default the module's
    own `config.name_or_path`). Conversations go through the tokenizer's chat template. Runs in `batch_size` rows cut at
    `max_length` tokens from the left, so that the completion is always seen. One call at a time.
    """

    auditable = False

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        batch_size: int = 16,
        max_length: int = 4096,
        device: str = "",
        dtype: str = "",
    ):
        self.model_given, self.tokenizer_given = model, tokenizer
        self.batch_size, self.max_length, self.device, self.dtype = batch_size, max_length, device, dtype
        self.__name__ = "reward_model"
        self.lock = threading.Lock()
        self.loaded: tuple[Any, Any] | None = None

    def load(self) -> tuple[Any, Any]:
        """The model and tokenizer, at first use."""
        if self.loaded is None:
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer

            model = self.model_given
            if isinstance(model, str):
                kwargs = {"dtype": getattr(torch, self.dtype)} if self.dtype else {}
                model = AutoModelForSequenceClassification.from_pretrained(model, **kwargs)
                if self.device:
                    model.to(self.device)
            source = self.tokenizer_given or getattr(getattr(model, "config", None), "name_or_path", "")
            tokenizer = AutoTokenizer.from_pretrained(source) if isinstance(source, str) and source else source
            if not tokenizer:
                raise InputError("rewards: model: pass the tokenizer of the reward model (an object or a path)")
            if tokenizer.pad_token is None:
                tokenizer.pad_token = tokenizer.eos_token
            model.config.pad_token_id = tokenizer.pad_token_id
            tokenizer.truncation_side, tokenizer.padding_side = "left", "right"
            self.loaded = model.eval(), tokenizer
        return self.loaded

    def __call__(self, *, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        import torch

        rewards: list[float] = []
        with self.lock, torch.inference_mode():
            model, tokenizer = self.load()
            texts = [render(tokenizer, prompt, completion) for prompt, completion in zip(prompts, completions)]
            device = next(model.parameters()).device
            for start in range(0, len(texts), self.batch_size):
                batch = tokenizer(
                    texts[start : start + self.batch_size],
                    padding=True,
                    truncation=True,
                    max_length=self.max_length,
                    return_tensors="pt",
                    add_special_tokens=isinstance(prompts[0], str),
                ).to(device)
                rewards += model(**batch).logits[:, 0].float().tolist()
        return rewards


def render(tokenizer: Any, prompt: Any, completion: Any) -> str:
    """One text of prompt and completion; messages through the chat template."""
    if isinstance(prompt, str):
        return prompt + completion
    messages = [
        *prompt,
        *(completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]),
    ]
    return str(tokenizer.apply_chat_template(messages, tokenize=False))
