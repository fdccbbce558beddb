"""One GRPO step, assay beside TRL: same model, prompts, number and lengths of completions, LoRA settings and threads.

    OMP_NUM_THREADS=1 python benchmarks/step.py [--workloads short email ...] [--rounds 3] [--dtypes float32 bfloat16]
                                                [--model smollm2 | llama-0.5b | FOLDER] [--skip-trl] [--cold]

Each contestant lives in a process of its own and takes a step when it is told to, in turn, so that other load falls on
all of them. Prints, for every workload, seconds of generation and of the rest (scoring, backward, optimiser, handing
the weights to the sampler), their ratios to TRL's (median, least and largest over rounds), peak resident memory of the
steps, completion tokens a second, and the share of the machine's measured matrix-product rate that the step's necessary
arithmetic reaches. CPU seconds are what a busy machine distorts least; wall seconds stand beside them. A second table
keeps three things apart: speed (float32 against float32), precision (assay's other dtypes against its float32), and
skipping (the workload `silent`, half of whose groups have no signal, against `email`, if both were run).

`llama-0.5b` is a random Llama of 0.49 billion weights, made in a temporary folder.

Lengths are forced: a completion may not end before its length and ends there. TRL runs without gradient checkpointing
and in the largest micro-batch that fits in a few GiB; its `beta` is 0 and its batch is one optimiser step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

PROMPTS = 4


@dataclass(frozen=True)
class Workload:
    """Prompt tokens, the lengths of a group's completions, how many groups have no signal, micro-batch sizes."""

    prompt: int
    lengths: tuple[int, ...]
    silent_groups: int = 0
    trl_rows: int = 32
    assay_tokens: int = 4096


WORKLOADS = {
    "short": Workload(38, (16,) * 8),
    "email": Workload(129, (24,) * 8, trl_rows=16),
    "spread": Workload(129, (6, 9, 13, 18, 24, 32, 40, 64), trl_rows=8),
    "silent": Workload(129, (24,) * 8, silent_groups=2, trl_rows=16),
    "fewshot": Workload(1000, (64,) * 8, trl_rows=4, assay_tokens=2048),
    "long": Workload(129, (256,) * 8, trl_rows=8),
    "fewshot-G16": Workload(1000, (64,) * 16, trl_rows=4, assay_tokens=2048),
}


class Contestant:
    """A worker process that takes one step a line of input and answers with one line of JSON."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.steps: list[dict[str, float]] = []
        worker = Path(__file__).with_name("step_workers.py")
        self.process = subprocess.Popen(
            [sys.executable, str(worker), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answer()

    def answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("STEP "):
                return json.loads(line[5:])
        raise SystemExit(f"{self.name} ended early")

    def step(self, keep: bool) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        measured = self.answer()
        if keep:
            self.steps.append(measured)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def column(self, key: str) -> list[float]:
        return [step[key] for step in self.steps]


def matrix_rate(dtype: torch.dtype) -> float:
    """Best multiply-add rate of a product of the model's kind, in FLOP/s of one process."""
    left, right = torch.ones(512, 576, dtype=dtype), torch.ones(576, 1536, dtype=dtype)
    best = float("inf")
    for _ in range(30):
        start = time.process_time()
        for _ in range(10):
            left @ right
        best = min(best, time.process_time() - start)
    return 10 * 2 * 512 * 576 * 1536 / best


def necessary_flops(workload: Workload, body: int, head: int) -> float:
    """Products without which the step cannot be taken by anyone: each token of each distinct prefix once.

    Forward 2 FLOP a weight; backward 2 more, since frozen weights need no gradient of their own. Attention is left out.
    """
    groups = PROMPTS - workload.silent_groups
    written = sum(workload.lengths)
    generated = PROMPTS * (2 * body * (workload.prompt + written) + 2 * head * written)
    return generated + groups * (4 * body * (workload.prompt + written) + 4 * head * written)


def ratio(slow: list[float], fast: list[float]) -> str:
    each = sorted(s / f for s, f in zip(slow, fast))
    return f"{statistics.median(each):.2f}x ({each[0]:.2f}-{each[-1]:.2f})"


def report(name: str, workload: Workload, contestants: list[Contestant]) -> None:
    base = contestants[0]
    print(f"\n### {name}: prompt {workload.prompt}, completions {workload.lengths}, {PROMPTS} prompts")
    print(
        "| | CPU s: generate + rest = step | wall s | generate | rest | step (CPU) | step (wall) | peak GiB | memory "
        "| tokens/s | of rate |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for one in contestants:
        middle = {key: statistics.median(one.column(key)) for key in one.steps[0]}
        rate = matrix_rate(torch.bfloat16 if "bfloat16" in one.name else torch.float32)
        flops = necessary_flops(workload, int(middle["body"]), int(middle["head"]))
        print(
            f"| {one.name} | {middle['generate_cpu']:.2f} + {middle['rest_cpu']:.2f} = {middle['step_cpu']:.2f} "
            f"| {middle['step_wall']:.2f} | {ratio(base.column('generate_cpu'), one.column('generate_cpu'))} "
            f"| {ratio(base.column('rest_cpu'), one.column('rest_cpu'))} "
            f"| {ratio(base.column('step_cpu'), one.column('step_cpu'))} "
            f"| {ratio(base.column('step_wall'), one.column('step_wall'))} "
            f"| {middle['peak_gib']:.2f} | {ratio(one.column('peak_gib'), base.column('peak_gib'))} "
            f"| {PROMPTS * sum(workload.lengths) / middle['step_wall']:.0f} "
            f"| {flops / middle['step_cpu'] / rate:.0%} |",
            flush=True,
        )


def apart(name: str, contestants: list[Contestant], whole: dict[str, list[float]]) -> None:
    """Speed, precision and skipping on lines of their own; `whole` holds the training part of `email` by contestant."""
    by_name = {one.name: one for one in contestants}
    exact = by_name.get("assay float32")
    if exact is None:
        return
    if (trl := by_name.get("TRL float32")) is not None:
        print(f"\nspeed, float32 against float32: step {ratio(trl.column('step_cpu'), exact.column('step_cpu'))} (CPU)")
    for one in contestants:
        if one.name.startswith("assay") and one is not exact:
            print(f"precision, {one.name} against assay float32: "
                  f"step {ratio(exact.column('step_cpu'), one.column('step_cpu'))} (CPU)")  # fmt: skip
        if name == "silent" and one.name in whole:
            print(f"skipping, {one.name}: rest {ratio(whole[one.name], one.column('rest_cpu'))} (CPU)")


def random_llama() -> str:
    """A folder with a random Llama of 0.49 billion weights (28 layers of 1,024) and SmolLM2's tokenizer."""
    import tempfile

    import transformers

    from assay.policy.builtin import resolve_model_path

    folder = Path(tempfile.gettempdir()) / f"assay-llama-0.5b-{os.getuid()}"
    if not (folder / "config.json").exists():
        tokenizer = transformers.AutoTokenizer.from_pretrained(resolve_model_path("smollm2"))
        config = transformers.LlamaConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=28, num_attention_heads=16,
            num_key_value_heads=8, vocab_size=len(tokenizer), max_position_embeddings=4096,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=True,
        )  # fmt: skip
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["short", "email"], choices=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cold", action="store_true", help="no step to warm up, where one takes minutes")
    parser.add_argument("--skip-trl", action="store_true", help="ratios are then to the first of --dtypes")
    arguments = parser.parse_args()
    threads = os.environ.get("OMP_NUM_THREADS", "default")
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    print(f"{now}, torch {torch.__version__}, OMP_NUM_THREADS {threads}, "
          f"load {os.getloadavg()[0]:.1f}, model {arguments.model}")  # fmt: skip
    model = random_llama() if arguments.model == "llama-0.5b" else arguments.model
    whole: dict[str, list[float]] = {}
    for name in arguments.workloads:
        contestants = []
        if not arguments.skip_trl:
            contestants.append(Contestant("TRL float32", ["trl", name, model, "float32"]))
        for dtype in arguments.dtypes:
            contestants.append(Contestant(f"assay {dtype}", ["assay", name, model, dtype]))
        try:
            for round_number in range(arguments.rounds + (not arguments.cold)):
                for one in contestants:
                    one.step(keep=arguments.cold or round_number > 0)
            report(name, WORKLOADS[name], contestants)
            apart(name, contestants, whole)
            if name == "email":
                whole = {one.name: one.column("rest_cpu") for one in contestants}
        finally:
            for one in contestants:
                one.close()


if __name__ == "__main__":
    main()
