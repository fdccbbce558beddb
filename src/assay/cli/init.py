"""`assay init`: a recipe from a dataset, with what was found in it written down."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from assay.cli.common import note, print_json
from assay.errors import InputError

TEMPLATE = """\
# Written by `assay init {data}`. Next:
#   assay audit {recipe}     does the verifier pay for the gold answers, and for nothing else?
#   assay check {recipe}     would this run learn?
#   assay train {recipe}
name: {name}
preset: {preset}

model:
  path: {model}            # a folder, a hub id, or smollm2 (small, ships in a package)

data:
  source: file
  path: {data}
  fields: {fields}
{system_prompt}  heldout_size: {heldout}

rewards:
  - {reward}

rollout:
  num_generations: 8
  max_completion_length: {length}

train:
  steps: 300               # small models often need that many before the reward moves
  prompts_per_step: 8

eval:
  every: 25
  prompts: {eval_prompts}
"""

# Verifiers that read a marked answer and nothing else: the model has to be told.
BOXED = ("math", "gsm8k", "numeric")
INSTRUCTION = """\
  system_prompt: Reason step by step and put the final answer within \\boxed{{}}.   # {verifier} reads no other
"""


def init(
    data: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL, JSON, CSV or parquet with one prompt a row.")],
    verifier: Annotated[
        str, typer.Option(help="What marks an answer, such as math, gsm8k, exact_match, or file.py:function.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The recipe; by default FILE's name in YAML.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Column with the question, where it has no usual name.")] = None,
    gold: Annotated[
        str | None, typer.Option(help="Column with the reference answer, where it has no usual name.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model to train.")] = "smollm2",
    preset: Annotated[str, typer.Option(help="Published recipe to start from.")] = "dapo",
    max_completion_length: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as one JSON object.")] = False,
) -> None:
    """Look at FILE, write a recipe that trains on it, and say what to do next."""
    from assay.config.load import build_config, load_preset
    from assay.prompts.options import FieldOptions, SourceOptions
    from assay.prompts.rows import find_columns
    from assay.prompts.sources import read_rows
    from assay.rewards import load_reward

    recipe = output or data.with_suffix(".yaml")
    if recipe.exists():
        raise InputError(f"{recipe} exists; give another name with --output, or remove it")
    load_preset(preset)
    load_reward(verifier)
    source = SourceOptions(source="file", path=str(data), fields=FieldOptions(prompt=prompt, gold=gold), heldout_size=0)
    rows = read_rows(source, 0).train
    columns = find_columns(list(rows[0]), source, str(data))
    heldout = min(128, len(rows) // 5)
    text = TEMPLATE.format(
        data=data, recipe=recipe, name=data.stem, preset=preset, model=model, heldout=heldout,
        length=max_completion_length, fields=inline({"prompt": columns.prompt, "gold": columns.gold}),
        reward=inline(verifier), eval_prompts=max(heldout, 1),
        system_prompt=INSTRUCTION.format(verifier=verifier) if verifier in BOXED else "",
    )  # fmt: skip
    build_config(yaml.safe_load(text), source=str(recipe))
    recipe.write_text(text, encoding="utf-8")
    found = {
        "recipe": str(recipe),
        "rows": len(rows),
        "prompt": columns.prompt,
        "gold": columns.gold,
        "heldout": heldout,
    }
    if as_json:
        print_json(found)
        return
    print(f"{recipe}: {len(rows)} rows, prompt in {columns.prompt!r}, gold in {columns.gold!r}, {heldout} held out")
    if len(rows) < 500:
        note(f"note: {len(rows)} prompts are few; practitioners advise at least 500")
    print(f"next: assay audit {recipe}")


def inline(value: Any) -> str:
    """A value as one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
