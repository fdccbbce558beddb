"""Puts verdict, findings, run card, charts and samples on one page."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from assay.monitoring.doctor import Diagnosis, verdict
from assay.monitoring.doctor.case import flags_of, rollout_id
from assay.monitoring.report.card import run_card
from assay.monitoring.report.data import ReportData
from assay.monitoring.report.register import CHARTS, draw_charts
from assay.monitoring.sources import Run

TEXT_LIMIT = 6000


def write_report(run: Run, diagnosis: Diagnosis, path: Path, price: float | None = None) -> Path:
    """Write the page and, beside it, report.json and report.md for machines and pull requests.

    `price` is that of one hour of one device, for the run card's cost.
    """
    data = ReportData(run, diagnosis, price=price)
    _replace(path, render_report(data))
    _replace(path.with_suffix(".json"), json.dumps({**diagnosis.to_json(), "card": dict(run_card(data))}, indent=2))
    _replace(path.with_suffix(".md"), markdown(data))
    return path


def render_report(data: ReportData) -> str:
    """The page; everything that a run contains goes through autoescaping, only our own SVG does not."""
    from jinja2 import Environment

    charts = draw_charts(data)
    drawn = {chart.id for chart, _ in charts}
    samples = gallery(data)
    template = Environment(autoescape=True, trim_blocks=True).from_string(
        (files("assay.monitoring.report") / "page.html.jinja").read_text()
    )
    config = data.run.directory / "config.yaml"
    return template.render(
        name=data.run.path.name,
        verdict=verdict(data.diagnosis),
        diagnosis=data.diagnosis,
        card=run_card(data),
        config=config.read_text() if config.exists() else "",
        charts=charts,
        missing=[chart.title.lower() for chart in CHARTS if chart.id not in drawn],
        gallery=samples,
        gallery_ids={row["id"] for _, row in samples},
    )


def gallery(data: ReportData) -> list[tuple[str, dict[str, Any]]]:
    """Best, worst, surprising, longest and newest flagged completions, and those that findings point to."""
    rows = [row for row in data.last_rows if row["reward"] is not None]
    if not rows:
        return []
    picks: list[tuple[str, Mapping[str, Any]]] = [
        ("Best paid", max(rows, key=lambda row: (row["reward"], -(row["num_tokens"] or 0)))),
        ("Worst paid", min(rows, key=lambda row: row["reward"])),
        ("Longest", max(rows, key=lambda row: row["num_tokens"] or 0)),
    ]
    surprising = [
        row for row in rows if row["correct"] is False and row["reward"] >= max(r["reward"] for r in rows) / 2
    ]
    if surprising and max(row["reward"] for row in surprising) > 0:
        picks.append(("Surprising: well paid, but not correct", max(surprising, key=lambda row: row["reward"])))
    flagged = [row for row in rows if flags_of(row)]
    if flagged:
        picks.append(("Newest with a flag", flagged[0]))
    by_id = {rollout_id(row): row for row in data.last_rows}
    for finding in data.diagnosis.findings:
        picks += [(f"Evidence for {finding.id}", by_id[name]) for name in finding.rollouts[:2] if name in by_id]
    seen: dict[str, tuple[str, dict[str, Any]]] = {}
    for label, row in picks:
        seen.setdefault(rollout_id(row), (label, _sample(row)))
    return list(seen.values())


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
    text = row["text"] or ""
    verdicts = {True: "correct", False: "wrong", None: "no verdict"}
    return {
        "id": rollout_id(row),
        "prompt": row["prompt"],
        "gold": row["gold"],
        "text": text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT] + " … (cut here)",
        "reward": f"{row['reward']:.3g}" if row["reward"] is not None else "none",
        "verdict": verdicts[row["correct"]],
        "num_tokens": row["num_tokens"],
        "finish": row["finish"],
        "advantage": f"{row['advantage']:.3g}" if row["advantage"] is not None else "none",
        "flags": flags_of(row),
    }


def markdown(data: ReportData) -> str:
    """The findings and the run card as Markdown, for a pull request or a CI log."""
    lines = [f"# {data.run.path.name}", "", f"**{verdict(data.diagnosis)}**", ""]
    for finding in data.diagnosis.findings:
        cause = f" (explained by {finding.explained_by})" if finding.explained_by else ""
        lines.append(
            f"- **{finding.severity} {finding.id}** {finding.title}{cause}. {finding.evidence}. Do: {finding.fix}"
        )
    lines += ["", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in run_card(data)), ""]
    return "\n".join(lines)


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
