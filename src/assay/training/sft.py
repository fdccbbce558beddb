"""Supervised fine-tuning on prompt and answer tokens, on transformers' Trainer: the loss counts answers only."""

from __future__ import annotations

import json
import math
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from assay.errors import RunError
from assay.policy import Policy
from assay.training.sft_options import SftOptions

IGNORED = -100  # the label that transformers' losses leave out
STATE = "trainer_state.json"
OnLog = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Example:
    """What is read and what is to be written after it, as token ids; the answer ends with the token that stops it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def fine_tune_policy(
    policy: Policy,
    examples: Sequence[Example],
    options: SftOptions,
    folder: Path,
    *,
    token_budget: int,
    seed: int = 0,
    pad_token_id: int = 0,
    on_log: OnLog = lambda step, metrics: None,
) -> tuple[int, bool]:
    """Train `policy` in place (its adapters, or all weights); returns (updates done, whether that is all of them).

    Checkpoints lie in `folder`; the newest whole one is gone on from. The first Ctrl-C or SIGTERM ends after the
    update, with a checkpoint. `token_budget` bounds a micro-batch, padding included; the gradient does not change.
    """
    micro = micro_batch_rows(options.batch_size, max(map(len, examples)), token_budget)
    half = policy.choices["dtype"] if not policy.has_adapters else "float32"  # with adapters the base is stored in it
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=options.batch_size // micro,
        learning_rate=options.peak_learning_rate(policy.has_adapters),
        lr_scheduler_type="cosine",
        warmup_steps=options.warmup_steps,
        weight_decay=0.0,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=options.checkpoint_every,
        save_total_limit=2,
        seed=seed,
        data_seed=seed,
        bf16=half == "bfloat16",
        fp16=half == "float16",
        use_cpu=policy.device.type == "cpu",
        dataloader_pin_memory=policy.device.type != "cpu",
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
    )
    watch = Watch(on_log)
    trainer = transformers.Trainer(
        model=policy.model,
        args=arguments,
        train_dataset=list(examples),
        data_collator=lambda batch: collate(batch, pad_token_id),
        callbacks=[watch],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    with watch:
        trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
    return trainer.state.global_step, not watch.stop


class Watch(transformers.TrainerCallback):
    """Passes the loss on, and turns the first signal into a checkpoint and an orderly end."""

    def __init__(self, report: OnLog) -> None:
        self.report = report
        self.stop = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **rest: Any) -> None:
        names = {"loss": "sft/loss", "grad_norm": "sft/grad_norm", "learning_rate": "sft/learning_rate"}
        found = {name: float(logs[key]) for key, name in names.items() if key in logs} if logs else {}
        if not math.isfinite(found.get("sft/loss", 0.0)):
            raise RunError(
                f"update {state.global_step}: the loss is {found['sft/loss']}; checkpoints before it are whole. Start "
                "again under another name with a lower sft.learning_rate, or with model.dtype=float32"
            )
        if "sft/loss" in found:
            self.report(state.global_step, found)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.stop:
            control.should_save = control.should_training_stop = True

    def __enter__(self) -> None:
        def ask(number: int, frame: Any) -> None:
            if self.stop:
                raise KeyboardInterrupt
            self.stop = True

        # Only the main thread of a process may install handlers.
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        self.previous = {number: signal.signal(number, ask) for number in numbers}

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)


def collate(batch: Sequence[Example], pad_token_id: int) -> dict[str, torch.Tensor]:
    """input_ids, attention_mask, labels [B, T], padded on the right; labels are IGNORED on prompt and padding.

    >>> collate([Example((1, 2), (3,)), Example((4,), ())], 0)["labels"].tolist()
    [[-100, -100, 3], [-100, -100, -100]]
    """
    longest = max(map(len, batch))
    shape = (len(batch), longest)
    input_ids = torch.full(shape, pad_token_id)
    labels, mask = torch.full(shape, IGNORED), torch.zeros(shape, dtype=torch.long)
    for row, example in enumerate(batch):
        tokens = torch.tensor(example.prompt + example.answer)
        input_ids[row, : len(example)] = tokens
        mask[row, : len(example)] = 1
        labels[row, len(example.prompt) : len(example)] = tokens[len(example.prompt) :]
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}


def micro_batch_rows(batch_size: int, longest: int, token_budget: int) -> int:
    """Rows of a micro-batch: the largest divisor of `batch_size` that the budget holds, at least one.

    >>> micro_batch_rows(32, 100, 1000), micro_batch_rows(32, 100, 50)
    (8, 1)
    """
    fitting = [rows for rows in range(1, batch_size + 1) if batch_size % rows == 0 and rows * longest <= token_budget]
    return max(fitting, default=1)


def newest_checkpoint(folder: Path) -> str | None:
    """The newest whole checkpoint: Trainer writes its state last, so one that can be read is whole."""
    whole = []
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        try:
            whole.append((int(json.loads((path / STATE).read_text())["global_step"]), str(path)))
        except (OSError, ValueError, KeyError):
            continue
    return max(whole)[1] if whole else None
