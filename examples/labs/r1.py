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


def assay(*words):
    print("assay", *words, file=sys.stderr)
    subprocess.run([sys.executable, "-m", "assay.cli.main", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def stages(folder, seed, steps, keys):
    """The run directories of reinforcement learning of one seed, R1-Zero's first."""
    seeded = [*keys, f"seed={seed}"]

    def train(name, length, *more):
        name = f"{name}-seed{seed}"
        assay("train", RECIPE, *seeded, f"name={name}", f"output_dir={folder}", f"train.steps={length}", *more)
        return folder / name

    def fine_tune(name, *more):
        assay("sft", RECIPE, *seeded, *more, "--output", folder / f"{name}-seed{seed}")
        return f"model.path={folder / f'{name}-seed{seed}' / 'model'}"

    zero = train("zero", steps)
    cold = fine_tune("cold", "data.options.worked=1", "data.options.size=64", f"data.options.seed={1000 + seed}")
    reason = train("r1-reason", steps // 2, cold)
    chosen = fine_tune("rejection", "sft.epochs=1", "--from-rollouts", reason, "--per-prompt", 2)
    return [zero, reason, train("r1-final", steps // 2, chosen)]


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
    parser.add_argument("keys", nargs="*", help="keys to change in every stage, such as model.path=FOLDER")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--output", type=Path, default=Path("runs/labs/r1"))
    options = parser.parse_args()
    table = []
    for seed in range(options.seeds):
        table += [row(run) for run in stages(options.output, seed, options.steps, options.keys)]
    print(json.dumps(table, indent=2))
