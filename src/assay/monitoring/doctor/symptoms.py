"""The two questions that people come with, as checklists in the order in which causes should be excluded."""

from __future__ import annotations

from dataclasses import dataclass

from assay.errors import InputError
from assay.monitoring.doctor.finding import Diagnosis


@dataclass(frozen=True)
class Question:
    """One line of a checklist: what is asked, and the rules that answer it."""

    text: str
    rules: tuple[str, ...]


SYMPTOMS: dict[str, tuple[Question, ...]] = {
    "reward-flat": (
        Question(
            "Does the verifier pay for gold in the model's own format?",
            ("RW07", "RW04", "RW01", "RW02", "RW05", "RW06"),
        ),
        Question("Do answers end before the limit?", ("TR04", "TR01", "TR02")),
        Question("Does the model ever succeed, and do groups differ inside?", ("GR01", "GR02", "GR03", "GR04", "GR05")),
        Question("Does the update reach the policy?", ("OP01", "OP05", "OP02", "KL02", "MM02", "MM05", "OP04", "RW03")),
        Question("Was it given time? Below 300 steps a flat start is normal if groups differ inside.", ("EV01",)),
    ),
    "length-grows": (
        Question("Are answers cut off, and do the cut ones count as failures?", ("TR04", "TR02", "TR01")),
        Question("Do only wrong answers grow (aggregation), or does a reward pay for length?", ("TR03", "HK02")),
        Question("Do answers repeat, hedge or pad?", ("HK04", "HK03", "HK05", "RW03")),
        Question("Has entropy collapsed or blown up?", ("EN01", "EN02", "KL01")),
        Question("Does the held-out score confirm the reward?", ("HK01", "EV01", "EV02")),
    ),
}


@dataclass(frozen=True)
class Answer:
    """`status` is problem, clear or unknown; `detail` says by which rules."""

    question: str
    status: str
    detail: str


def walk(symptom: str, diagnosis: Diagnosis) -> list[Answer]:
    """The checklist of a symptom, answered from the diagnosis; InputError for a name that is no symptom."""
    if symptom not in SYMPTOMS:
        raise InputError(f"--symptom {symptom!r} is not known; it can be {' or '.join(SYMPTOMS)}")
    found = {item.id: item for item in diagnosis.findings if item.severity != "info"}
    clear = {item.id for item in diagnosis.clear} | {item.id for item in diagnosis.findings if item.severity == "info"}
    unknown = {item.id: item for item in [*diagnosis.not_checkable, *diagnosis.too_early]}
    answers = []
    for question in SYMPTOMS[symptom]:
        problems = [found[name] for name in question.rules if name in found]
        missing = [unknown[name] for name in question.rules if name in unknown]
        if problems:
            answers.append(Answer(question.text, "problem", "; ".join(f"{item.id} {item.title}" for item in problems)))
        elif any(name in clear for name in question.rules):
            left = f"; not answered: {', '.join(item.id for item in missing)}" if missing else ""
            answers.append(Answer(question.text, "clear", ", ".join(n for n in question.rules if n in clear) + left))
        else:
            answers.append(Answer(question.text, "unknown", "; ".join(f"{item.id} {item.needs}" for item in missing)))
    return answers
