"""pass@k and pass^k of one model, or of a base and a trained model on the same problems, as files and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.errors import InputError
from assay.evaluation import figures
from assay.evaluation.passk import Curve, curve, paired_curve, powers_of_two
from assay.evaluation.passk_sampling import Tally
from assay.training.rundir import write_whole


@dataclass(frozen=True)
class PassReport:
    """Curves by model; `change` is the paired difference of the second from the first, where there are two."""

    problems: int
    n: int
    pass_at_k: Mapping[str, Curve]
    pass_hat_k: Mapping[str, Curve]
    change: Curve | None
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "problems": self.problems,
            "n": self.n,
            "pass_at_k": {name: _plain(found) for name, found in self.pass_at_k.items()},
            "pass_hat_k": {name: _plain(found) for name, found in self.pass_hat_k.items()},
            "change": None if self.change is None else _plain(self.change),
            "warnings": list(self.warnings),
        }


def report(tallies: Mapping[str, Tally], ks: Sequence[int] | None = None) -> PassReport:
    """Curves over the problems of which every model has a judged sample; `ks` default to powers of two.

    A k above the fewest judged samples of a problem cannot be estimated: by default it is left out, and raises
    InputError where it was asked for.
    """
    keys = {found.keys for found in tallies.values()}
    if len(keys) != 1:
        raise InputError("the models were sampled on different problems, so they cannot be compared in pairs")
    judged = np.all([found.n > 0 for found in tallies.values()], axis=0)
    if not judged.any():
        raise InputError("no problem has a judged sample: look at the verifier's errors before sampling again")
    counts = {name: (found.n[judged], found.c[judged]) for name, found in tallies.items()}
    fewest = int(min(n.min() for n, _ in counts.values()))
    chosen = tuple(ks) if ks is not None else powers_of_two(fewest)
    warnings = [
        f"{name}: {found.unjudged} samples got no verdict and are left out"
        for name, found in tallies.items()
        if found.unjudged
    ]
    if not judged.all():
        warnings.append(f"{int((~judged).sum())} problems without a judged sample are left out")
    at, hat = ({name: curve(n, c, chosen, reliability=way) for name, (n, c) in counts.items()} for way in (False, True))
    warnings += dict.fromkeys(text for found in at.values() for text in found.warnings)
    change = None
    if len(counts) == 2:
        before, after = counts.values()
        change = paired_curve(before, after, chosen)
    return PassReport(int(judged.sum()), fewest, at, hat, change, tuple(warnings))


def write_report(found: PassReport, tallies: Mapping[str, Tally], folder: str | Path, title: str = "") -> None:
    """passk.json, problems.parquet (problem, model, n, c), passk.svg and, with pass^k, passhatk.svg."""
    folder = Path(folder)
    write_whole(folder / "passk.json", json.dumps(found.as_dict(), indent=1) + "\n")
    rows = [
        {"problem": key, "model": name, "n": int(n), "c": int(c)}
        for name, tally in tallies.items()
        for key, n, c in zip(tally.keys, tally.n, tally.c, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "problems.parquet")
    figures.write_picture(figures.pass_at_k(found.pass_at_k, title), folder / "passk.svg")
    figures.write_picture(figures.pass_at_k(found.pass_hat_k, title, "pass^k"), folder / "passhatk.svg")


def _plain(found: Curve) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(found).items()}
