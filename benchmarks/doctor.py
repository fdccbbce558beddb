"""The doctor against rldoctor on the same simulated runs: who names the planted cause, who alarms on healthy runs.

    pip install rldoctor            # in an environment of its own
    python benchmarks/doctor.py --rldoctor /path/to/rl-doctor [--seeds 3] [--healthy 20] [--markdown]

Both read the same metrics (TRL's names); assay's doctor is run twice: on the run directory, rollouts included, and on
what TRL alone would have logged. rldoctor is credited generously: for any first finding by the detector whose subject
the fault is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from assay.monitoring.doctor import diagnose
from assay.monitoring.simulation import FAULTS, Fault, SimulatedRun, World, healthy, simulate, write_run, write_trl
from assay.monitoring.sources import open_run

# The rldoctor detector (0.2) whose subject is the fault; faults whose rule is missing here have none.
SUBJECT = {
    "GR01": "advantage_collapse", "GR02": "advantage_collapse", "GR03": "advantage_collapse",
    "TR01": "length_pathology", "TR02": "length_pathology", "TR03": "length_pathology", "HK02": "length_pathology",
    "EN01": "entropy_collapse", "EN02": "entropy_collapse", "KL01": "kl_drift", "KL02": "kl_drift",
    "HK01": "reward_hacking", "HK03": "reward_hacking", "HK05": "reward_hacking", "RW02": "reward_composition",
    "RW03": "reward_composition", "OP01": "gradient_pathology", "OP02": "gradient_pathology",
    "OP03": "gradient_pathology", "OP04": "clip_saturation", "EV01": "plateau", "EV02": "plateau",
}  # fmt: skip


SEVERITIES = ("CRITICAL", "WARNING")


def rldoctor_findings(command: str, run: SimulatedRun, folder: Path) -> list[tuple[str, str]]:
    """(detector, severity), the severest first as in its headline, without mere information."""
    log = folder / "log.jsonl"
    with open(log, "w") as file:
        for line in run.lines:
            named = {"eval_score" if name == "heldout/accuracy" else name: value for name, value in line.items()}
            file.write(json.dumps(named) + "\n")
    done = subprocess.run([command, "diagnose", str(log), "-f", "json"], capture_output=True, text=True, timeout=120)
    report: dict[str, Any] = json.loads(done.stdout)
    alarms = [(item["detector"], item["severity"]) for item in report["findings"] if item["severity"] in SEVERITIES]
    return sorted(alarms, key=lambda alarm: SEVERITIES.index(alarm[1]))


def trl_first(run: SimulatedRun, folder: Path) -> str:
    facts = {"num_generations": run.world.group_size, "max_completion_length": run.world.cap, "heldout_prompts": 200}
    first = diagnose(open_run(write_trl(run, folder / "trainer_state.json"), facts)).first
    return first.id if first is not None and first.severity != "info" else "-"


def judge(fault: Fault, seeds: int, command: str | None) -> dict[str, Any]:
    hits = {"assay": 0, "assay on TRL's log": 0, "rldoctor": 0, "anywhere": 0}
    said: dict[str, str] = {}
    for seed in range(seeds):
        run = simulate(fault.plant(World(seed=500 + seed)))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            first = diagnose(open_run(write_run(run, folder / "run"))).first
            own = first.id if first is not None and first.severity != "info" else "-"
            trl = trl_first(run, folder)
            theirs = rldoctor_findings(command, run, folder) if command else []
        said = {"assay": own, "assay on TRL's log": trl, "rldoctor": theirs[0][0] if theirs else "-"}
        hits["assay"] += own == fault.expected
        hits["assay on TRL's log"] += trl == fault.expected
        hits["rldoctor"] += bool(theirs) and theirs[0][0] == SUBJECT.get(fault.expected)
        hits["anywhere"] += SUBJECT.get(fault.expected) in [name for name, _ in theirs]
    return {"fault": fault.name, "expected": fault.expected, "hits": hits, "said": said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rldoctor", default=None, help="the rl-doctor executable; without it only assay is measured")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    systems = ["assay", "assay on TRL's log"] + (["rldoctor"] if options.rldoctor else [])
    rows = [judge(fault, options.seeds, options.rldoctor) for fault in FAULTS.values()]
    mark = "|" if options.markdown else "  "
    print(mark.join(["", "planted fault", "rule", *systems, ""]))
    if options.markdown:
        print("|" + "---|" * (2 + len(systems)))
    for row in rows:
        cells = [f"{row['hits'][name]}/{options.seeds} ({row['said'][name]})" for name in systems]
        print(mark.join(["", row["fault"], row["expected"], *cells, ""]))
    total = len(rows) * options.seeds
    for name in systems:
        found = sum(row["hits"][name] for row in rows)
        print(f"\n{name}: names the planted cause first in {found} of {total} runs ({found / total:.0%})")
    if options.rldoctor:
        anywhere = sum(row["hits"]["anywhere"] for row in rows)
        print(f"\nrldoctor: has the fault's detector anywhere among its warnings in {anywhere} of {total} runs")
    alarms = {name: 0 for name in systems}
    for seed in range(options.healthy):
        run = simulate(healthy(seed))
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            alarms["assay"] += diagnose(open_run(write_run(run, folder / "run"))).alarming
            alarms["assay on TRL's log"] += trl_first(run, folder) != "-"
            if options.rldoctor:
                alarms["rldoctor"] += bool(rldoctor_findings(options.rldoctor, run, folder))
    for name in systems:
        print(f"\n{name}: alarms on {alarms[name]} of {options.healthy} healthy runs")


if __name__ == "__main__":
    main()
