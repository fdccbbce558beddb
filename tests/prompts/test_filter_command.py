"""`assay filter` from a recipe to two files, on a tiny model; interrupted and continued."""

import json

import pyarrow.parquet
import pytest
import yaml
from typer.testing import CliRunner

from assay.cli.main import app

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def has_vowel(completions, **kwargs):
    """A verdict that random bytes earn now and then."""
    return [float(any(letter in "aeiou" for letter in completion[-1]["content"])) for completion in completions]


@pytest.fixture
def recipe(tiny_folder, tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"question": f"Say {w}.", "answer": w}) + "\n" for w in WORDS)
    )
    content = {
        "model": {"path": str(tiny_folder("llama")), "dtype": "float32"},
        "data": {"source": "file", "path": str(tmp_path / "rows.jsonl"), "heldout_size": 2},
        "rewards": [f"{__file__}:has_vowel"],
        "rollout": {"max_completion_length": 10},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(content))
    return str(tmp_path / "r.yaml")


def run(*words):
    result = CliRunner().invoke(app, ["filter", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_filters_continues_and_agrees_with_its_counts(recipe, tmp_path):
    output = tmp_path / "out.jsonl"
    summary = json.loads(run(recipe, "--output", output, "--samples", 4, "--generations", 4, "--json").stdout)
    assert summary["prompts"] == 8
    kept = [json.loads(line) for line in output.read_text().splitlines()]
    aside = [json.loads(line) for line in (tmp_path / "out.aside.jsonl").read_text().splitlines()]
    assert (len(kept), len(kept) + len(aside)) == (summary["kept"], 8)
    for row in kept + aside:
        assert row["question"] == f"Say {row['answer']}."
        judged = row["assay_right"] + row["assay_wrong"]
        assert judged == (4 if row["assay_right"] and row["assay_wrong"] and judged == 4 else 8)
    assert any(row["assay_right"] > 0 for row in kept + aside)
    assert any(row["assay_wrong"] > 0 for row in kept + aside)

    counts = tmp_path / "out.counts.jsonl"
    whole = counts.read_text()
    lines = whole.splitlines(keepends=True)
    counts.write_text("".join(lines[:4]) + lines[4][:9])
    again = json.loads(run(recipe, "--output", output, "--samples", 4, "--generations", 4, "--json").stdout)
    assert again == summary
    assert sorted(counts.read_text().splitlines()) == sorted(whole.splitlines())
    assert [json.loads(line) for line in output.read_text().splitlines()] == kept


def test_parquet_and_bad_input(recipe, tmp_path):
    output = tmp_path / "out.parquet"
    shown = run(recipe, "--output", output, "--samples", 2, "--retests", 0).stdout
    assert "prompts kept" in shown
    assert (
        pyarrow.parquet.read_table(output).num_rows
        + pyarrow.parquet.read_table(tmp_path / "out.aside.parquet").num_rows
        == 8
    )
    for words, says in [
        (["--output", tmp_path / "out.xlsx"], "unknown kind"),
        (["--output", output, "--samples", 1], "at least 2"),
        (["--output", output, "--samples", 3], "would count"),
        (["--output", output, "data.nmae=x"], "nmae"),
    ]:
        with pytest.raises(Exception, match=says):
            CliRunner().invoke(app, ["filter", recipe, *map(str, words)], catch_exceptions=False)
