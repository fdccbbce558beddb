"""Media columns: references and hashes, never bytes; a model that reads text only says so."""

import hashlib
import json
from types import SimpleNamespace

import pytest

from assay.errors import InputError
from assay.policy.tiny import tiny_tokenizer
from assay.prompts import load_prompts
from assay.prompts.media import media_of
from assay.prompts.options import DataOptions, FieldOptions
from assay.records import Media

PIXEL = b"\x89PNG\r\n\x1a\n not a real picture"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.png").write_bytes(PIXEL)
    (tmp_path / "b.wav").write_bytes(b"RIFF")
    rows = [{"question": f"What is in picture {i}?", "answer": str(i), "image": "a.png"} for i in range(6)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def options(folder, **fields):
    return DataOptions(source="file", path=str(folder / "rows.jsonl"), heldout_size=0, fields=FieldOptions(**fields))


class Reader:
    """A processor: the toy tokenizer, and eyes."""

    image_processor = SimpleNamespace()

    def __init__(self):
        self.tokenizer = tiny_tokenizer()

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, text):
        return self.tokenizer(text)


def test_a_cell_becomes_references_with_hashes(folder):
    expected = Media("image", str(folder / "a.png"), hashlib.sha256(PIXEL).hexdigest())
    for cell in ("a.png", ["a.png"], {"path": "a.png", "bytes": None}, str(folder / "a.png")):
        assert media_of(cell, folder, "here") == (expected,)
    assert [item.kind for item in media_of(["a.png", "b.wav"], folder, "here")] == ["image", "audio"]
    assert media_of(None, folder, "here") == media_of([], folder, "here") == ()


@pytest.mark.parametrize(
    ("cell", "message"),
    [("missing.png", "does not exist"), (b"bytes", "paths of files"), ({"bytes": b"x"}, "holds a dict"),
     ("rows.jsonl", "no image, audio or video")],
)  # fmt: skip
def test_what_is_no_medium_is_one_clear_line(folder, cell, message):
    with pytest.raises(InputError, match=message):
        media_of([cell], folder, "here")


def test_a_text_model_refuses_and_says_how_to_go_on(folder):
    with pytest.raises(InputError, match=r"reads text only; set data\.fields\.media=none"):
        load_prompts(options(folder), tiny_tokenizer())
    pool = load_prompts(options(folder, media="none"), tiny_tokenizer())
    assert len(pool.train) == 6
    assert all(prompt.media == () for prompt in pool.train)


def test_a_model_that_sees_gets_the_reference_and_the_picture_is_part_of_the_identity(folder):
    first = load_prompts(options(folder), Reader()).train[0]
    assert [item.reference for item in first.media] == [str(folder / "a.png")]
    (folder / "a.png").write_bytes(PIXEL + b"!")
    changed = load_prompts(options(folder), Reader()).train[0]
    assert changed.content == first.content
    assert changed.content_key != first.content_key


def test_the_column_may_have_another_name(folder):
    text = (folder / "rows.jsonl").read_text().replace('"image"', '"picture"')
    (folder / "rows.jsonl").write_text(text)
    assert load_prompts(options(folder), tiny_tokenizer()).train[0].media == ()
    assert load_prompts(options(folder, media="picture"), Reader()).train[0].media
