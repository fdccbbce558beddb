"""R1-Zero and R1 on the toy digits: every stage is a command of the library; a stage that is done is not done again.

    python examples/labs/r1.py --seeds 2

R1-Zero is one long run of reinforcement learning on the base model. R1 is a cold start on 64 worked answers, a run of
half that length, fine-tuning of the base model on what that run got right (rejection sampling), and a second run.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

RECIPE = "recipes/labs/r1-digits.yaml"
FOLDER = Path("runs/labs/r1")


def assay(*words):
    print("assay", *words, file=sys.stderr)
    subprocess.run([sys.executable, "-m", "assay.cli.main", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def train(name, seed, steps, model=None):
    start = [] if model is None else [f"model.path={model}"]
    assay("train", RECIPE, f"name={name}", f"seed={seed}", f"output_dir={FOLDER}", f"train.steps={steps}", *start)
    return FOLDER / name


def stages(seed, steps):
    """The run directories of one seed, R1-Zero's first."""
    zero = train(f"zero-seed{seed}", seed, steps)
    cold = FOLDER / f"cold-seed{seed}"
    cold_rows = ["data.options.worked=1", "data.options.size=64", f"data.options.seed={1000 + seed}"]
    assay("sft", RECIPE, *cold_rows, f"seed={seed}", "--output", cold)
    reason = train(f"r1-reason-seed{seed}", seed, steps // 2, cold / "model")
    rejection = FOLDER / f"rejection-seed{seed}"
    chosen = ["--from-rollouts", reason, "--per-prompt", 2]
    assay("sft", RECIPE, "sft.epochs=1", f"seed={seed}", *chosen, "--output", rejection)
    final = train(f"r1-final-seed{seed}", seed, steps // 2, rejection / "model")
    return [zero, reason, final]


def row(run):
    """What a run came to: pass rate before and after, and how long its sampled answers are at the end."""
    summary = json.loads((run / "summary.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "heldout/pass_rate" in line][-1]
    return {
        "run": run.name,
        "before": summary["pass_rate_before"],
        "after": summary["pass_rate_after"],
        "interval": [last["heldout/pass_rate_low"], last["heldout/pass_rate_high"]],
        "length": last["heldout/sampled/completions/mean_length"],
        "kl_to_start": last.get("heldout/kl_to_base_sequence"),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    table = [row(run) for seed in range(options.seeds) for run in stages(seed, options.steps)]
    print(json.dumps(table, indent=2))
