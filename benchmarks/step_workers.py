"""The contestants of step.py: `python step_workers.py assay|trl WORKLOAD MODEL DTYPE`; a line of input, a step."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from step import PROMPTS, WORKLOADS, Workload

LEARNING_RATE = 1e-5


def prompt_ids(workload: Workload, vocabulary: int) -> list[list[int]]:
    """Random ordinary tokens; both contestants see the same."""
    generator = random.Random(0)
    return [[generator.randrange(100, vocabulary) for _ in range(workload.prompt)] for _ in range(PROMPTS)]


def reward_of(group: int, member: int, workload: Workload) -> float:
    return 0.0 if group < workload.silent_groups else float(member % 2)


class Meter:
    """CPU and wall seconds of a step and of the generation in it; peak resident memory of the step."""

    def __init__(self, model: Any) -> None:
        head = model.get_output_embeddings().weight.numel()
        embedding = model.get_input_embeddings().weight
        tied = embedding is model.get_output_embeddings().weight
        frozen = sum(p.numel() for name, p in model.named_parameters() if "lora_" not in name)
        self.sizes = {"body": frozen - head - (0 if tied else embedding.numel()), "head": head}
        self.generated = (0.0, 0.0)

    def wait(self) -> None:
        if not sys.stdin.readline():
            sys.exit()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self.started = (time.process_time(), time.perf_counter())

    def add_generation(self, cpu: float, wall: float) -> None:
        self.generated = (cpu, wall)

    def say(self) -> None:
        cpu, wall = time.process_time() - self.started[0], time.perf_counter() - self.started[1]
        measured = {
            "generate_cpu": self.generated[0],
            "rest_cpu": cpu - self.generated[0],
            "step_cpu": cpu,
            "step_wall": wall,
            "peak_gib": peak_gib(),
        }
        print("STEP " + json.dumps(measured | self.sizes), flush=True)


def peak_gib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def run_assay(workload: Workload, model: str, dtype: str) -> None:
    import numpy as np

    from assay.objectives import Rows, build, compute_advantages, group_tokens, preset
    from assay.policy import ModelOptions, ScoringBatch, load_policy
    from assay.ranks import Ranks
    from assay.records import Finish
    from assay.rollouts import Request, Sampling, TransformersEngine, TransformersEngineOptions, generate
    from assay.rollouts.options import RolloutOptions
    from assay.training.optimizers import build_optimizer
    from assay.training.options import TrainOptions
    from assay.training.rows import Window
    from assay.training.update import Updater

    class FixedLengths(TransformersEngine):
        """Completion g ends at the workload's length g."""

        def _append(self, alive: Any, *drawn: Any) -> None:
            super()._append(alive, *drawn)
            for row in alive:
                if len(row.tokens) >= workload.lengths[members[id(row.stream)]]:
                    row.finish = Finish.STOP

        def submit(self, request: Any) -> int:
            handle = super().submit(request)
            members.update((id(row.stream), member) for member, row in enumerate(self._open[handle]))
            return handle

    members: dict[int, int] = {}
    policy = load_policy(ModelOptions(path=model, dtype=dtype))  # type: ignore[arg-type]
    kept = TransformersEngineOptions(keep_outputs_gib=RolloutOptions().keep_outputs_gib)
    engine = FixedLengths.from_policy(policy, [], kept)
    prompts = prompt_ids(workload, policy.config.vocab_size)
    group_size = len(workload.lengths)
    options = TrainOptions(prompts_per_step=PROMPTS, token_budget=workload.assay_tokens)
    spec = preset("dapo", count_no_signal=True)
    optimizer = build_optimizer(policy, options)
    updater = Updater(policy, build(spec), optimizer, options, temperature=1.0, seed=0, ranks=Ranks(),
                      max_completion_length=max(workload.lengths), dump_folder=Path(tempfile.mkdtemp()))  # fmt: skip
    group_ids = torch.arange(PROMPTS).repeat_interleave(group_size)
    rewards = torch.tensor(
        [[reward_of(group, member, workload)] for group in range(PROMPTS) for member in range(group_size)]
    )
    meter = Meter(policy.transformer)
    print("STEP {}", flush=True)
    step = 0
    while True:
        meter.wait()
        members.clear()
        sampling = Sampling(max(workload.lengths))
        requests = [
            Request(tuple(p), sampling, group_size, seed=99 * step + n, for_update=True) for n, p in enumerate(prompts)
        ]
        groups = generate(engine, requests)
        meter.add_generation(time.process_time() - meter.started[0], time.perf_counter() - meter.started[1])
        rows = [completion.segments[0].token_ids for group in groups for completion in group]
        traces = tuple(completion.trace for group in groups for completion in group)
        batch = ScoringBatch(tuple(map(np.array, prompts)), tuple(rows), tuple(group_ids.tolist()), traces=traces)
        mask = torch.from_numpy(batch.mask())
        found = compute_advantages(rewards.double(), group_ids, torch.ones(1).double(), spec)
        tensors = Rows(mask=mask, advantages=found.advantages.float(), group_tokens=group_tokens(mask, group_ids))
        updater(Window(batch, tensors, group_ids, found.no_signal), step, LEARNING_RATE)
        engine.push(policy.named_full_weights(), step)
        step += 1
        meter.say()


def run_trl(workload: Workload, model: str, dtype: str) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    from assay.policy.builtin import resolve_model_path

    folder = resolve_model_path(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    prompts = prompt_ids(workload, base.config.vocab_size)
    group_size = len(workload.lengths)
    rows = PROMPTS * group_size

    class ForceLengths(transformers.LogitsProcessor):
        """Row r ends exactly at its length."""

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            written = input_ids.shape[1] - workload.prompt + 1
            ends = torch.tensor([length == written for length in workload.lengths]).repeat(len(scores) // group_size)
            scores[:, tokenizer.eos_token_id] = -torch.inf
            scores[ends] = -torch.inf
            scores[ends, tokenizer.eos_token_id] = 0.0
            return scores

    class OneByOne(transformers.TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            meter.say()
            meter.wait()

    def reward(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        return [reward_of(int(prompt), n % group_size, workload) for n, prompt in enumerate(prompts)]

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, fp16=False, report_to="none", logging_steps=1000,
        per_device_train_batch_size=min(workload.trl_rows, rows),
        gradient_accumulation_steps=rows // min(workload.trl_rows, rows), num_generations=group_size,
        max_completion_length=max(workload.lengths), beta=0.0, temperature=1.0, learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant", max_steps=10_000, gradient_checkpointing=False, save_strategy="no",
        shuffle_dataset=False, disable_tqdm=True, loss_type="dapo", dataloader_num_workers=0,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=base,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(PROMPTS)]}),
        processing_class=tokenizer,
        peft_config=LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear"),
        callbacks=[OneByOne()],
    )
    meter = Meter(trainer.model.get_base_model())  # type: ignore[union-attr, operator]
    plain_generate, plain_turn = trainer.model.generate, trainer._generate_single_turn  # type: ignore[union-attr]

    def with_lengths(*args: Any, **kwargs: Any) -> Any:
        return plain_generate(*args, logits_processor=transformers.LogitsProcessorList([ForceLengths()]), **kwargs)

    def timed_turn(*args: Any, **kwargs: Any) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = plain_turn(*args, **kwargs)
        meter.add_generation(time.process_time() - cpu, time.perf_counter() - wall)
        return result

    # The dataset's prompts are numbers; the tokens that they stand for are the same random ones that assay gets.
    trainer._tokenize_prompts = lambda texts: ([prompts[int(text)] for text in texts], None, {})  # type: ignore
    trainer._generate_single_turn = timed_turn  # type: ignore[method-assign]
    trainer.model.generate = with_lengths  # type: ignore[union-attr, method-assign, assignment]
    print("STEP {}", flush=True)
    meter.wait()
    trainer.train()


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    {"assay": run_assay, "trl": run_trl}[sys.argv[1]](WORKLOADS[sys.argv[2]], sys.argv[3], sys.argv[4])
