"""The quick start under several seeds: held-out accuracy before and after, and how long it took.

    python benchmarks/quickstart.py --seeds 10 [--json] [section.key=value ...]

Each seed is a process of its own with its own data (prompts, held-out prompts), adapters and samples; runs lie in
runs/quickstart-seed-N and are resumed by the same command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
RISE = 0.3


def train(seed: int, overrides: list[str]) -> dict:
    """One run; its summary.json."""
    words = [f"seed={seed}", f"data.seed={seed}", f"name=quickstart-seed-{seed}", *overrides]
    command = [sys.executable, "-m", "assay", "train", str(RECIPE), *words, "--json", "--quiet"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options, overrides = parser.parse_known_args()
    rows = []
    for seed in range(options.seeds):
        rows.append(train(seed, overrides))
        if not options.json:
            show(rows[-1])
    rises = [row["heldout_after"] - row["heldout_before"] for row in rows]
    enough = sum(rise >= RISE for rise in rises)
    if options.json:
        print(json.dumps({"runs": rows, "rises": rises, "enough": enough}))
    else:
        print(f"rise of at least {RISE}: {enough} of {len(rows)} seeds; from {min(rises):+.3f} to {max(rises):+.3f}")
    sys.exit(enough < 0.9 * len(rows))


def show(row: dict) -> None:
    sampled = ""
    if row.get("pass_rate_before") is not None:
        sampled = f"  sampled {row['pass_rate_before']:.3f} -> {row['pass_rate_after']:.3f}"
    print(
        f"seed {row['seed']}: greedy {row['heldout_before']:.3f} -> {row['heldout_after']:.3f}{sampled}  "
        f"{row['train_seconds']:.0f} s training, {row['total_seconds']:.0f} s in all, {row['peak_memory_gib']:.1f} GiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
