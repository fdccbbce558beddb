"""The items that an answer lists: names in front taken away, plus-minus written out, unions of finite sets joined."""

from __future__ import annotations

import re

from assay.rewards.answers.structure import Sequence_, assignment, read_list, read_sequence


def squeeze(text: str) -> str:
    """Without spaces that mean nothing; those between two letters or digits stay."""
    return re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", text)


def plus_minus(text: str) -> bool:
    return "\\pm" in text or "\\mp" in text


def items_of(text: str) -> Sequence_ | None:
    """The items of a sequence, with names in front of them taken away where all are named alike."""
    if named := assignments(text):
        distinct = len({name for name, _ in named})
        return Sequence_("tuple" if distinct == len(named) > 1 else "list", tuple(value for _, value in named))
    single = assignment(text)
    if single is not None:
        text = single[1][-1]
    if "\\cup" in text or "\\setminus" in text:
        return finite_sets(text)
    sequence = read_sequence(text)
    if sequence is None and plus_minus(text):
        return Sequence_("list", (text,))
    if sequence is not None and sequence.kind == "list" and sequence.items:
        first = assignment(sequence.items[0])
        if first is not None and len(first[1]) == 1:
            sequence = Sequence_("list", (first[1][0], *sequence.items[1:]))
    return sequence


def expand(sequence: Sequence_ | None) -> Sequence_ | None:
    """`a \\pm b` as the two values that it stands for."""
    if sequence is None or not any(map(plus_minus, sequence.items)):
        return sequence
    items: list[str] = []
    for item in sequence.items:
        stated = assignment(item)
        item = stated[1][-1] if stated else item
        if plus_minus(item):
            items += [re.sub(r"\\pm", "+", item).replace("\\mp", "-"), re.sub(r"\\pm", "-", item).replace("\\mp", "+")]
        else:
            items.append(item)
    return Sequence_(sequence.kind, tuple(re.sub(r"^\s*\+\s*", "", item) for item in items))


def finite_sets(text: str) -> Sequence_ | None:
    """Unions and differences of finite sets."""
    parts = re.split(r"\\(cup|setminus)(?![A-Za-z])", text)
    sets = [read_sequence(part.strip()) for part in parts[::2]]
    if any(found is None or found.kind != "set" for found in sets):
        return None
    items = [squeeze(item) for item in sets[0].items] if sets[0] else []
    for operator, found in zip(parts[1::2], sets[1:]):
        others = [squeeze(item) for item in found.items] if found else []
        if operator == "cup":
            items += [item for item in others if item not in items]
        else:
            items = [item for item in items if item not in others]
    return Sequence_("set", tuple(items))


def assignments(text: str) -> list[tuple[str, str]] | None:
    """`a = 3, b = 5` or `x = 1 or x = 2` as pairs; None unless there are several and all are assignments."""
    parts = read_list(text)
    named = [assignment(part) for part in parts or ()]
    if not named or any(found is None or len(found[1]) != 1 for found in named):
        return None
    return [(squeeze(found[0]), found[1][0]) for found in named if found]
