"""How a window of rows is cut into micro-batches under a token budget. Pure; the loss does not depend on the cut."""

from __future__ import annotations

from collections.abc import Sequence


def micro_batch_tokens(
    prompt_lengths: Sequence[int],
    row_lengths: Sequence[int],
    row_prompt: Sequence[int],
    rows: Sequence[int],
    shared: bool,
) -> int:
    """Tokens that the model forwards for these rows: each prompt once if `shared`, else a padded rectangle."""
    if not rows:
        return 0
    if shared:
        return sum(prompt_lengths[p] for p in {row_prompt[r] for r in rows}) + sum(row_lengths[r] for r in rows)
    return len(rows) * max(prompt_lengths[row_prompt[r]] + row_lengths[r] for r in rows)


def plan_micro_batches(
    prompt_lengths: Sequence[int],
    row_lengths: Sequence[int],
    row_prompt: Sequence[int],
    token_budget: int,
    *,
    shared: bool = True,
) -> list[list[int]]:
    """Cut rows into micro-batches of at most `token_budget` forwarded tokens each.

    With `shared` scoring, rows of one prompt stay together (a prompt is paid for once a micro-batch), a group that
    is too large alone is cut into even sub-groups, and the pieces are packed first-fit-decreasing. Without it, rows
    are sorted by length so that little is padded. A single row above the budget gets a micro-batch of its own.

    Args:
        prompt_lengths: tokens of each prompt.
        row_lengths: tokens of each completion.
        row_prompt: for each row the index of its prompt.
        token_budget: most tokens one forward pass may hold.
        shared: whether prompts are shared by their rows.

    Returns:
        Lists of row indices; every row is in exactly one list. Deterministic.

    >>> plan_micro_batches([10, 10], [5, 5, 5, 5], [0, 0, 1, 1], token_budget=40)
    [[0, 1, 2, 3]]
    >>> plan_micro_batches([10, 10], [5, 5, 5, 5], [0, 0, 1, 1], token_budget=20)
    [[0, 1], [2, 3]]
    >>> plan_micro_batches([10, 10], [5, 5, 5, 5], [0, 0, 1, 1], token_budget=30, shared=False)
    [[0, 1], [2, 3]]
    """
    if token_budget < 1:
        raise ValueError(f"token budget is {token_budget}; it must be positive")
    if not shared:
        return _length_sorted(prompt_lengths, row_lengths, row_prompt, token_budget)
    groups: dict[int, list[int]] = {}
    for row, prompt in enumerate(row_prompt):
        groups.setdefault(prompt, []).append(row)
    pieces: list[tuple[int, list[int]]] = []
    for prompt, rows in groups.items():
        for piece in _sub_groups(prompt_lengths[prompt], row_lengths, rows, token_budget):
            pieces.append((prompt_lengths[prompt] + sum(row_lengths[r] for r in piece), piece))
    return _first_fit_decreasing(pieces, token_budget)


def _sub_groups(prompt_length: int, row_lengths: Sequence[int], rows: list[int], token_budget: int) -> list[list[int]]:
    """Cut one group into as few pieces as fit, each paying for the prompt again; longest rows spread evenly."""
    total = sum(row_lengths[r] for r in rows)
    room = token_budget - prompt_length
    if total <= room or len(rows) == 1:
        return [rows]
    if room <= 0:
        return [[row] for row in rows]
    for pieces in range(min(len(rows), max(2, -(-total // room))), len(rows) + 1):
        bins: list[list[int]] = [[] for _ in range(pieces)]
        loads = [0] * pieces
        for row in sorted(rows, key=lambda r: -row_lengths[r]):
            lightest = loads.index(min(loads))
            bins[lightest].append(row)
            loads[lightest] += row_lengths[row]
        if max(loads) <= room:
            break
    return [sorted(piece) for piece in bins if piece]


def _first_fit_decreasing(pieces: list[tuple[int, list[int]]], token_budget: int) -> list[list[int]]:
    bins: list[list[int]] = []
    loads: list[int] = []
    for tokens, rows in sorted(pieces, key=lambda piece: -piece[0]):
        for index, load in enumerate(loads):
            if load + tokens <= token_budget:
                bins[index].extend(rows)
                loads[index] += tokens
                break
        else:
            bins.append(list(rows))
            loads.append(tokens)
    return [sorted(rows) for rows in bins]


def _length_sorted(
    prompt_lengths: Sequence[int], row_lengths: Sequence[int], row_prompt: Sequence[int], token_budget: int
) -> list[list[int]]:
    def length(row: int) -> int:
        return prompt_lengths[row_prompt[row]] + row_lengths[row]

    batches: list[list[int]] = []
    # Longest first: the first micro-batch has the highest peak, so that a run that does not fit fails at once.
    for row in sorted(range(len(row_lengths)), key=lambda r: (-length(r), r)):
        if batches and (len(batches[-1]) + 1) * length(batches[-1][0]) <= token_budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches
