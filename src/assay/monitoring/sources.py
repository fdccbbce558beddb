"""Opens a run whoever wrote it: a run directory of assay, TRL's trainer_state.json or output directory, a wandb export,
verl's JSONL; metrics come out under TRL's names."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.errors import InputError
from assay.monitoring.history import History, from_lines, read_json_lines, read_metrics
from assay.monitoring.imports import RolloutSource, foreign_rollouts
from assay.monitoring.store import RolloutStore

STEP_NAMES = ("step", "global_step", "train/global_step", "_step", "Step", "training/global_step")
# verl's names (and what wandb keeps of them) -> ours. Several may map to one name; the first that is present wins.
VERL_NAMES = {
    "critic/score/mean": "reward",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/kl_loss": "kl",
    "actor/pg_clipfrac": "clip_ratio/region_mean",
    "actor/pg_clipfrac_lower": "clip_ratio/low_mean",
    "actor/grad_norm": "grad_norm",
    "actor/pg_loss": "loss",
    "actor/lr": "learning_rate",
    "critic/advantages/max": "advantages/max",
    "response_length/mean": "completions/mean_length",
    "response_length/max": "completions/max_length",
    "response_length/min": "completions/min_length",
    "response_length/clip_ratio": "completions/clipped_ratio",
    "training/rollout_probs_diff_mean": "sampling/probability_difference/mean",
    "rollout_corr/rollout_is_eff_sample_size": "sampling/effective_sample_size",
    "rollout_corr/rollout_is_mean": "sampling/importance_sampling_ratio/mean",
    "timing_s/gen": "time/generate",
    "timing_s/reward": "time/score",
    "timing_s/update_actor": "time/train",
    "timing_s/step": "step_time",
    "perf/throughput": "tokens_per_second",
}
VERL_HELDOUT = re.compile(r"^(val-core|val)/.*(acc|score|reward)")


@dataclass
class Run:
    """A run to look at. `facts` are configuration values by section.name and by last name; `rollouts` may be None."""

    path: Path
    history: History
    facts: Mapping[str, Any] = field(default_factory=dict)
    rollouts: RolloutSource | None = None
    checkpoints: tuple[Path, ...] = ()
    finished: bool = False

    @property
    def directory(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent


def open_run(path: str | Path, facts: Mapping[str, Any] | None = None) -> Run:
    """Open a run directory or one log file; `facts` adds or replaces configuration values that the log lacks.

    InputError where nothing readable is there.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist; give a run directory or a log file")
    run = _open_directory(path) if path.is_dir() else Run(path, read_log(path))
    return Run(run.path, run.history, {**run.facts, **(facts or {})}, run.rollouts, run.checkpoints, run.finished)


def read_log(path: Path) -> History:
    """One log file: metrics.jsonl, a flat or verl JSONL, trainer_state.json, a JSON list of logs, a wandb CSV."""
    if path.suffix == ".csv":
        return _foreign(_csv_rows(path), "wandb export")
    if path.suffix == ".json":
        return _read_json(path)
    if path.suffix == ".jsonl":
        return _read_jsonl(path)
    raise InputError(f"{path} is no log that is known here; known are .jsonl, .json (trainer_state) and .csv")


def _open_directory(path: Path) -> Run:
    if (path / "metrics.jsonl").exists():
        checkpoints = subfolders(path / "checkpoints")
        store = RolloutStore(path / "rollouts")
        return Run(
            path,
            read_metrics(path),
            _facts(path / "config.yaml"),
            store if store.steps() else None,
            checkpoints,
            (path / "summary.json").exists(),
        )
    states = [path / "trainer_state.json", *sorted(path.glob("checkpoint-*/trainer_state.json"), key=_checkpoint_step)]
    states = [state for state in states if state.exists()]
    if states:
        checkpoints = tuple(sorted(path.glob("checkpoint-*"), key=lambda item: _checkpoint_step(item / "x")))
        return Run(path, _read_json(states[-1]), {}, foreign_rollouts(path), checkpoints)
    logs = [file for file in sorted(path.glob("*.jsonl")) if not file.stem.isdigit()]
    if len(logs) == 1:
        return Run(path, _read_jsonl(logs[0]), _facts(path / "config.yaml"), foreign_rollouts(path))
    rollouts = foreign_rollouts(path)
    if rollouts is not None:
        return Run(path, from_lines([], "rollouts only"), {}, rollouts)
    raise InputError(
        f"{path} is no run: it has no metrics.jsonl, trainer_state.json or single .jsonl log"
        + (f" (but {len(logs)} of them: give one)" if logs else "")
    )


def _read_json(path: Path) -> History:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not readable JSON: {error}") from None
    lines = content.get("log_history") if isinstance(content, dict) else content
    if not isinstance(lines, list):
        raise InputError(f"{path} has no `log_history` list; a trainer_state.json of transformers or TRL has")
    return _foreign([line for line in lines if isinstance(line, dict)], "TRL log history")


def _read_jsonl(path: Path) -> History:
    objects, warnings = read_json_lines(path)
    if objects and all(isinstance(item.get("data"), dict) for item in objects[:5]):
        flat = [{**item["data"], "step": item.get("step")} for item in objects if isinstance(item.get("data"), dict)]
        history = _foreign(flat, "verl JSONL")
    elif any("time/unix" in item for item in objects[:5]):
        return read_metrics(path)
    else:
        history = _foreign(objects, "JSON lines")
    history.warnings = warnings + history.warnings
    return history


def _foreign(rows: Sequence[Mapping[str, Any]], source: str) -> History:
    lines = list(_canonical(rows))
    history = from_lines(lines, source)
    if rows and not lines:
        raise InputError(f"the log has no step column; looked for {', '.join(STEP_NAMES)}")
    return history


def _canonical(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        step = next((row[name] for name in STEP_NAMES if _is_number(row.get(name))), None)
        if step is None:
            continue
        line: dict[str, Any] = {"step": int(step)}
        for name, value in row.items():
            known = canonical_name(name)
            if known is not None and (known not in line or name == known):
                line[known] = value
        yield line


def canonical_name(name: str) -> str | None:
    """Our name of a foreign metric; None for what is no metric of the run.

    >>> canonical_name("train/completions/clipped_ratio"), canonical_name("eval_reward")
    ('completions/clipped_ratio', 'heldout/reward')
    """
    if name in STEP_NAMES or name.startswith("_") or name.endswith(("__MIN", "__MAX")):
        return None
    name = name.rsplit(" - ", 1)[-1].removeprefix("train/")
    if name in VERL_NAMES:
        return VERL_NAMES[name]
    if VERL_HELDOUT.match(name):
        return "heldout/accuracy"
    for prefix in ("eval_", "eval/"):
        if name.startswith(prefix):
            return "heldout/" + name.removeprefix(prefix)
    return name


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return [{name: _number(value) for name, value in row.items() if name} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}") from None


def _facts(path: Path) -> dict[str, Any]:
    """config.yaml as `section.name` and, where nothing else has it, `name`."""
    if not path.exists():
        return {}
    import yaml

    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not readable YAML: {error}") from None
    return flatten(tree) if isinstance(tree, dict) else {}


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration values as `section.name` and, where nothing else has it, `name`.

    >>> flatten({"train": {"steps": 3}, "name": "run"})
    {'train.steps': 3, 'steps': 3, 'name': 'run'}
    """
    facts: dict[str, Any] = {}
    for section, content in tree.items():
        if not isinstance(content, Mapping):
            facts.setdefault(section, content)
            continue
        for name, value in content.items():
            facts[f"{section}.{name}"] = value
            facts.setdefault(name, value)
    return facts


def subfolders(path: Path) -> tuple[Path, ...]:
    return tuple(sorted(item for item in path.iterdir() if item.is_dir())) if path.is_dir() else ()


def _checkpoint_step(state: Path) -> int:
    found = re.search(r"checkpoint-(\d+)", str(state.parent))
    return int(found.group(1)) if found else -1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _number(text: str | None) -> Any:
    try:
        return float(text) if text else None
    except ValueError:
        return text
