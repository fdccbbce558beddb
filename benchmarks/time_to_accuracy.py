"""Seconds of training until the quick start's held-out accuracy is reached: assay beside TRL's GRPOTrainer.

    OMP_NUM_THREADS=2 python benchmarks/time_to_accuracy.py [--target 0.6] [--steps 24] [--every 4] [--seed 0]
                                                            [--only assay|trl] [section.key=value ...]

Both learn from recipes/quickstart.yaml: the same model, e-mails, rewards, LoRA, learning rate, batch, token-level loss
and clip range. assay runs as the recipe says (its dtype measured at start); TRL in float32, without gradient
checkpointing, beta 0, the whole batch as one micro-batch of 32 rows where `--trl-rows` does not say otherwise. Held-out
accuracy (greedy, all fields right) is measured every few updates by assay's engine for both, outside the clock. The
clock counts generation, marking, scoring and update, and for assay the hand-over of weights. The two draw prompts and
answers in different order, so that one run each is an anecdote: run several seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
Curve = list[tuple[int, float, float]]


def run_assay(words: list[str], options: argparse.Namespace) -> Curve:
    """[(step, seconds of training, accuracy)] of a run in a temporary directory."""
    import assay

    fixed = [
        f"eval.every={options.every}",
        f"train.steps={options.steps}",
        "monitoring.console=quiet",
        "eval.samples=0",
    ]
    result = assay.train(RECIPE, overrides=[*words, *fixed, f"output_dir={tempfile.mkdtemp()}"])
    curve, seconds = [], 0.0
    for line in (result.directory / "metrics.jsonl").read_text().splitlines():
        found = json.loads(line)
        seconds += found.get("step_time", 0.0)
        if "heldout/accuracy" in found:
            curve.append((found["step"], seconds, found["heldout/accuracy"]))
    return curve


def run_trl(words: list[str], options: argparse.Namespace) -> Curve:
    """The same curve of TRL's trainer."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    from assay.api.session import Session
    from assay.config.load import load_recipe
    from assay.policy import stop_token_ids
    from assay.policy.adapters import named_merged_weights, plain_copy
    from assay.policy.builtin import resolve_model_path
    from assay.rollouts import Request, Sampling, TransformersEngine, generate

    config = load_recipe(RECIPE, words)
    session = Session(config)
    heldout = session.pool.heldout[: config.eval.prompts]
    size = config.rollout.num_generations
    rows = config.train.prompts_per_step * size
    per_device = min(options.trl_rows, rows)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        resolve_model_path(config.model.path), dtype=torch.float32
    )
    curve: Curve = []
    clock = {"seconds": 0.0, "since": 0.0}

    def reward(prompts: list, completions: list, number: list[int], **rest: Any) -> list[float]:
        return marks(session, [session.pool.train[index] for index in number], completions)[0]

    def accuracy() -> float:
        base = trainer.model.get_base_model()  # type: ignore[union-attr, operator]
        engine = TransformersEngine(plain_copy(base), stop_token_ids(base, session.tokenizer))  # type: ignore[arg-type]
        engine.push(named_merged_weights(base), version=1)
        limit = Sampling(config.rollout.max_completion_length, temperature=0.0)
        written = generate(engine, [Request(prompt.token_ids, limit, 1, seed=0) for prompt in heldout])
        texts = [session.decode(group[0].segments[0].token_ids.tolist()) for group in written]
        found = marks(session, heldout, [[{"role": "assistant", "content": text}] for text in texts])[1]
        return sum(found) / len(found)

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            if not clock["since"]:
                clock["since"] = time.perf_counter()

        def on_step_end(self, arguments: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock["seconds"] += time.perf_counter() - clock["since"]
            if state.global_step % options.every == 0:
                curve.append((state.global_step, clock["seconds"], accuracy()))
                print(f"TRL step {curve[-1][0]}: {curve[-1][1]:.0f} s, {curve[-1][2]:.3f}", flush=True)
            clock["since"] = time.perf_counter()

    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=not torch.cuda.is_available(), bf16=False, fp16=False,
        report_to="none", logging_steps=1000, per_device_train_batch_size=per_device,
        gradient_accumulation_steps=rows // per_device, num_generations=size, save_strategy="no", disable_tqdm=True,
        max_completion_length=config.rollout.max_completion_length, beta=0.0, temperature=1.0,
        learning_rate=config.train.peak_learning_rate(lora=True), lr_scheduler_type="constant",
        max_steps=options.steps, gradient_checkpointing=False, loss_type="dapo", seed=config.seed,
        epsilon_high=config.objective.epsilon_high, max_grad_norm=config.train.max_grad_norm,
        mask_truncated_completions=config.objective.mask_truncated_completions,
    )  # fmt: skip
    columns = {
        "prompt": [prompt.content for prompt in session.pool.train],
        "number": list(range(len(session.pool.train))),
    }
    lora = LoraConfig(task_type="CAUSAL_LM", r=config.model.lora_rank, lora_alpha=config.model.lora_alpha,  # type: ignore
                      target_modules="all-linear")  # fmt: skip
    trainer = GRPOTrainer(model=model, reward_funcs=reward, args=settings, train_dataset=Dataset.from_dict(columns),
                          processing_class=session.tokenizer, peft_config=lora, callbacks=[Clock()])  # fmt: skip
    curve.append((0, 0.0, accuracy()))
    clock["since"] = 0.0
    trainer.train()
    return curve


def marks(session: Any, prompts: Any, completions: list) -> tuple[list[float], list[bool]]:
    """Rewards and verdicts of one completion a prompt, by assay's scorer."""
    import numpy as np

    from assay.records import Completion, Finish, Group, Segment

    token = Segment(np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool), np.zeros(1, dtype=np.float32))
    groups = [
        Group(prompt, [Completion(segments=[token], finish=Finish.STOP, content=content)])
        for prompt, content in zip(prompts, completions, strict=True)
    ]
    session.scorer.score(groups)
    done = [group.completions[0] for group in groups]
    return [float(item.reward or 0.0) for item in done], [bool(item.correct) for item in done]


def reached(curve: Curve, target: float) -> float | None:
    return next((seconds for _, seconds, accuracy in curve if accuracy >= target), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=0.6)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trl-rows", type=int, default=32)
    parser.add_argument("--only", choices=["assay", "trl"])
    options, overrides = parser.parse_known_args()
    words = [f"seed={options.seed}", f"data.seed={options.seed}", *overrides]
    found = {}
    for name, contestant in (("assay", run_assay), ("trl", run_trl)):
        if options.only in (None, name):
            curve = contestant(words, options)
            found[name] = reached(curve, options.target)
            print(f"{name}: " + ", ".join(f"step {step} {seconds:.0f} s {value:.3f}" for step, seconds, value in curve))
            print(f"{name}: accuracy {options.target} after {found[name] and round(found[name])} s", flush=True)
    if found.get("assay") and found.get("trl"):
        print(f"assay needs {found['assay'] / found['trl']:.2f} of TRL's time")


if __name__ == "__main__":
    main()
