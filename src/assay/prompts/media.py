"""Images, sounds and videos of a prompt: references with a hash of their bytes, which stay where they are."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import InputError
from assay.records import Media

KINDS = ("image", "audio", "video")


def media_of(value: Any, folder: Path, where: str) -> tuple[Media, ...]:
    """The media of one row's cell: a path, a mapping with `path`, or a list of these; relative ones start at `folder`.

    Raises InputError for what is no path, a file that is not there, and a suffix of no known kind.
    """
    if value is None or value == "" or value == []:
        return ()
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(one_medium(item, folder, where) for item in items)


def one_medium(item: Any, folder: Path, where: str) -> Media:
    reference = item.get("path") if isinstance(item, Mapping) else item
    if not isinstance(reference, str | Path) or not str(reference):
        raise InputError(
            f"{where}: a media column holds a {type(item).__name__}; it must hold paths of files "
            "(of a datasets.Dataset: cast_column(name, Image(decode=False)), with the files on disk)"
        )
    path = Path(reference) if Path(reference).is_absolute() else folder / reference
    if not path.is_file():
        raise InputError(f"{where}: the media file {str(path)!r} does not exist; paths are relative to the data file")
    kind = (mimetypes.guess_type(path.name)[0] or "").partition("/")[0]
    if kind not in KINDS:
        raise InputError(f"{where}: {path.name!r} is no {', '.join(KINDS[:-1])} or {KINDS[-1]} by its suffix")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Media(kind, str(path), digest)


def check_reads_media(tokenizer: Any, media: tuple[Media, ...], where: str) -> None:
    """Raises InputError where the model reads text only: a prompt without its picture is another prompt."""
    parts = {"image": "image_processor", "audio": "feature_extractor", "video": "video_processor"}
    for item in media:
        if getattr(tokenizer, parts[item.kind], None) is None:
            raise InputError(
                f"{where}: rows hold a {item.kind} ({Path(item.reference).name!r}), but the model reads text only; "
                "set data.fields.media=none to train on the text alone"
            )
