"""Readers: every kind of source becomes plain rows, training and, where the source has them apart, held-out."""

from __future__ import annotations

import csv
import difflib
import glob
import gzip
import inspect
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from assay.errors import InputError
from assay.prompts.loading import load_function
from assay.prompts.options import SourceOptions
from assay.prompts.tasks import task_rows

Row = dict[str, Any]
TASK_SIZE = 512
# How the name of a source begins that was handed over in Python and is stored nowhere.
IN_MEMORY = "(a dataset of "
MOST_ROWS = 2_000_000


@dataclass
class Rows:
    """Rows as read; `heldout` is None where the held-out part must still be split off the training rows."""

    train: list[Row]
    heldout: list[Row] | None
    notes: list[str] = field(default_factory=list)


def read_rows(source: SourceOptions, seed: int) -> Rows:
    """All rows of a source. Raises InputError where it does not exist, cannot be read or is empty."""
    rows = READERS[source.source](source, seed)
    if not rows.train:
        raise InputError(f"{describe(source)} has no rows; training needs at least one prompt")
    return rows


def describe(source: SourceOptions) -> str:
    """The source in words, for messages."""
    named = (
        source.path if source.source == "file" else "/".join(filter(None, [source.name or "email_json", source.config]))
    )
    return {"task": "task", "hub": "dataset", "reasoning_gym": "reasoning-gym task"}.get(
        source.source, source.source
    ) + f" {named}"


def read_task(source: SourceOptions, seed: int) -> Rows:
    name = source.name or "email_json"
    return Rows(*task_rows(name, source.options, source.train_size or TASK_SIZE, source.heldout_size, seed))


def read_files(source: SourceOptions, seed: int) -> Rows:
    assert source.path is not None
    heldout = read_path(source.heldout_path, "data.heldout_path") if source.heldout_path else None
    return Rows(read_path(source.path, "data.path"), heldout)


def read_path(pattern: str, key: str) -> list[Row]:
    """Rows of one file, or of all files that a pattern such as data/*.parquet matches, in order of their names."""
    paths = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
    if not paths:
        raise InputError(f"{key} {pattern!r} matches no file")
    return [row for path in paths for row in read_file(Path(path), key)]


def read_file(path: Path, key: str) -> list[Row]:
    kind = path.suffixes[-2] if path.suffix == ".gz" and len(path.suffixes) > 1 else path.suffix
    if kind not in FORMATS:
        raise InputError(
            f"{key} {str(path)!r} has an unknown kind; readable are {', '.join(FORMATS)}, each also as .gz"
        )
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return list(FORMATS[kind](raw, f"{key} {path}"))
    except FileNotFoundError as error:
        raise InputError(f"{key} {str(path)!r} does not exist (looked from {Path.cwd()})") from error
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InputError(f"{key} {str(path)!r} cannot be read: {error}") from error


def parse_jsonl(raw: bytes, where: str) -> Iterator[Row]:
    for number, line in enumerate(raw.decode("utf-8-sig").split("\n"), start=1):
        if line.strip():
            yield parse_object(line, f"{where}, line {number}")


def parse_json(raw: bytes, where: str) -> Iterator[Row]:
    try:
        loaded = json.loads(raw.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not valid JSON: {error}; one object a line belongs in a .jsonl file") from error
    if not isinstance(loaded, list) or not all(isinstance(row, dict) for row in loaded):
        raise InputError(f"{where} must hold a list of objects, one a row")
    yield from loaded


def parse_object(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not valid JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(row, dict):
        raise InputError(f"{where} holds {line[:60]!r}; every line must be an object with named columns")
    return row


def parse_csv(raw: bytes, where: str) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    reader = csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline=""), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise InputError(
                    f"{where}, line {reader.line_num}: not the header's {len(reader.fieldnames or [])} columns"
                )
            yield dict(row)
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}") from error


def parse_parquet(raw: bytes, where: str) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(io.BytesIO(raw))
    except pyarrow.ArrowException as error:
        raise InputError(f"{where} is not a readable parquet file: {error}") from error
    yield from table.to_pylist()


FORMATS: dict[str, Callable[[bytes, str], Iterator[Row]]] = {
    ".jsonl": parse_jsonl,
    ".json": parse_json,
    ".csv": parse_csv,
    ".parquet": parse_parquet,
}


def read_hub(source: SourceOptions, seed: int) -> Rows:
    """A dataset of the hub, or a local folder in the hub's layout, through the `datasets` library."""
    train = load_split(source, source.split)
    heldout = load_split(source, source.heldout_split) if source.heldout_split else None
    notes = []
    if source.streaming:
        notes.append(f"streamed: the first {len(train)} rows of split {source.split}, not a random choice")
    return Rows(train, heldout, notes)


def load_split(source: SourceOptions, split: str) -> list[Row]:
    import datasets

    if source.streaming and source.train_size is None:
        raise InputError("data.streaming reads row by row without end in sight; set data.train_size to say how many")
    try:
        loaded = datasets.load_dataset(source.name, source.config, split=split, streaming=source.streaming)
        wanted = (source.train_size or 0) + source.heldout_size if source.streaming else None
        return [dict(row) for row in islice(loaded, wanted)]
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"dataset {source.name!r} (config {source.config!r}, split {split!r}) cannot be loaded: {reason}; "
            "check data.name, data.config and data.split, and the network"
        ) from error


def read_reasoning_gym(source: SourceOptions, seed: int) -> Rows:
    """Tasks of the reasoning-gym package; rows carry the entry by which its own scorer marks answers."""
    from assay.rewards.gym import dataset_names, gym_rows

    names = dataset_names()
    if source.name not in names:
        close = difflib.get_close_matches(str(source.name), names, n=3, cutoff=0.4)
        hint = f"close are {', '.join(close)}" if close else f"it has {', '.join(names)}"
        raise InputError(f"reasoning-gym has no task {source.name!r}; {hint}")
    size = source.train_size or TASK_SIZE
    rows = gym_rows(source.name, size + source.heldout_size, **{"seed": seed, **source.options})
    return Rows(rows[source.heldout_size :], rows[: source.heldout_size])


def read_python(source: SourceOptions, seed: int) -> Rows:
    """A function that returns rows, or a mapping with `train` and `heldout`; it may take `seed` and data.options."""
    if str(source.name).startswith(IN_MEMORY):
        raise InputError(
            f"this run learned from rows that Python held in memory {source.name}; write them to a file and add "
            "data.source=file data.path=ROWS.jsonl"
        )
    function = load_function(str(source.name), "data.name")
    arguments = dict(source.options)
    if "seed" in inspect.signature(function).parameters:
        arguments.setdefault("seed", seed)
    try:
        made = function(**arguments)
    except TypeError as error:
        raise InputError(f"data.name {source.name!r} cannot be called with {arguments}: {error}") from error
    parts = made if isinstance(made, Mapping) else {"train": made}
    if not set(parts) <= {"train", "heldout"} or "train" not in parts:
        raise InputError(
            f"data.name {source.name!r} returned a mapping with {sorted(parts)}; it may have train and heldout"
        )
    heldout = take(parts["heldout"], source.heldout_size, source) if "heldout" in parts else None
    more = 0 if heldout is not None else source.heldout_size
    return Rows(take(parts["train"], source.train_size and source.train_size + more, source), heldout)


def take(rows: Iterable[Any], most: int | None, source: SourceOptions) -> list[Row]:
    """At most `most` rows; an endless generator without a limit is an error and not a hang."""
    taken = list(islice(rows, MOST_ROWS if most is None else most))
    if most is None and len(taken) == MOST_ROWS:
        raise InputError(f"{describe(source)} gave {MOST_ROWS} rows and has not ended; set data.train_size")
    for number, row in enumerate(taken):
        if not isinstance(row, Mapping):
            raise InputError(
                f"{describe(source)}, row {number} is a {type(row).__name__}; a row maps column names to values"
            )
    return [dict(row) for row in taken]


READERS: dict[str, Callable[[SourceOptions, int], Rows]] = {
    "task": read_task,
    "file": read_files,
    "hub": read_hub,
    "reasoning_gym": read_reasoning_gym,
    "python": read_python,
}
