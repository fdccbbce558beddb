"""What a run writes survives kills, resumes and strict readers."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.errors import InputError
from assay.monitoring.history import from_lines, read_metrics
from assay.monitoring.schema import SCHEMA, gold_of
from assay.monitoring.store import MetricsLog, RolloutStore
from assay.records import Completion, Finish, Group, Media, Prompt, Segment


def strict(text):
    def refuse(value):
        raise AssertionError(f"{value} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_lines_are_strict_json_and_keep_what_was_not_finite(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(1, {"reward": 0.5, "loss": float("nan"), "grad_norm": float("-inf"), "absent": None})
    log.close()
    line = strict((tmp_path / "metrics.jsonl").read_text())
    assert line["loss"] is None
    assert line["nonfinite"] == {"loss": "nan", "grad_norm": "-inf"}
    history = read_metrics(tmp_path)
    assert sorted(name for _, name, _ in history.nonfinite) == ["grad_norm", "loss"]
    assert "absent" not in history.columns


def test_truncate_drops_later_steps_and_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(1, 6):
        log.append(step, {"reward": step / 10})
    log.append(3, {"heldout/accuracy": 0.7})
    log.close()
    with open(path, "ab") as file:
        file.write(b'{"step": 2, "rew')
    log.truncate(3)
    assert [strict(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 3]
    log.append(4, {"reward": 0.9})
    log.close()
    history = read_metrics(path)
    assert history.series("reward")[1].tolist() == [0.1, 0.2, 0.3, 0.9]
    assert history.last("heldout/accuracy") == 0.7
    assert not list(tmp_path.glob("*.tmp"))


def test_truncate_to_nothing_and_without_a_file(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.truncate(0)
    log.append(1, {"reward": 1.0})
    log.truncate(0)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


WRITER = """
import sys, itertools
from assay.monitoring.store import MetricsLog
log = MetricsLog(sys.argv[1])
for step in itertools.count(1):
    log.append(step, {f"metric/{index}": step + index for index in range(40)})
"""


def test_a_reader_beside_a_killed_writer_sees_whole_steps_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    try:
        deadline = time.monotonic() + 60
        while not (path.exists() and path.stat().st_size > 200_000):
            assert time.monotonic() < deadline, "the writer wrote nothing"
            time.sleep(0.01)
        history = read_metrics(path)
        assert history.columns["metric/39"].tolist() == [step + 39 for step in history.steps]
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    before = path.read_bytes()
    history = read_metrics(path)
    assert path.read_bytes() == before
    assert history.steps.tolist() == list(range(1, len(history) + 1))


def conversational_group():
    prompt = Prompt(
        [{"role": "user", "content": "2+2? ünï"}],
        (5, 6),
        {"prompt": "dropped", "answer": 4, "tests": ["a", np.int64(3)]},
        media=(Media("image", "cat.png", "ab"),),
        content_key="key",
    )
    first = Segment(np.array([1, 2, 3]), np.array([1, 0, 1], bool), np.array([-1.0, np.nan, -0.25]))
    second = Segment(np.array([4]), np.array([1], bool), np.array([-2.0]))
    content = [{"role": "assistant", "content": "a <script>"}, {"role": "tool", "content": "no"}]
    row = Completion([first, second], Finish.LENGTH, content, tags={"flags": ["exit"], "entropies": np.ones(3)})
    return Group(prompt, [row], draw=7)


def test_a_rollout_comes_back_as_it_was(tmp_path, completion, group):
    store = RolloutStore(tmp_path / "rollouts")
    store.write(3, [group([completion(3, 1.0, True)]), conversational_group()])
    plain, chat = store.read(3)
    assert plain["correct"] is True
    assert plain["gold"] == "42"
    assert plain["judgements"][0] == {
        "name": "math",
        "outcome": "correct",
        "reward": 1.0,
        "extracted": "42",
        "span_start": 3,
        "span_end": 5,
        "detail": "",
    }
    assert json.loads(chat["prompt"])[0]["content"] == "2+2? ünï"
    assert json.loads(chat["row"]) == {"answer": 4, "tests": ["a", 3]}
    assert chat["token_ids"] == [1, 2, 3, 4]
    assert chat["segment_lengths"] == [3, 1]
    assert chat["loss_mask"] == [True, False, True, True]
    assert np.isnan(chat["sampling_logps"][1])
    assert chat["num_tokens"] == 3
    assert (chat["finish"], chat["draw"], chat["correct"], chat["reward"]) == ("length", 7, None, None)
    assert json.loads(chat["tags"]) == {"flags": ["exit"]}
    assert chat["entropies"] == [1.0, 1.0, 1.0]
    assert chat["gold"] == "4"


def test_any_parquet_tool_reads_the_documented_columns(tmp_path, completion, group):
    path = RolloutStore(tmp_path).write(1, [group([completion()])])
    from assay.monitoring import schema

    assert pq.read_schema(path).names == SCHEMA.names
    assert pq.read_schema(path).metadata[b"assay.rollouts.version"] == b"1"
    for name in SCHEMA.names:
        assert name in schema.__doc__, f"column {name} is not documented"


def test_resuming_removes_later_and_half_written_files(tmp_path, completion, group):
    store = RolloutStore(tmp_path)
    for step in (1, 2, 3):
        store.write(step, [group([completion()])])
    (tmp_path / "step-000004.tmp99").write_bytes(b"half")
    store.truncate(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001.parquet", "step-000002.parquet"]
    assert store.steps() == [1, 2]


def test_foreign_and_broken_files_are_named(tmp_path):
    store = RolloutStore(tmp_path)
    (tmp_path / "step-000001.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(InputError, match=r"step-000001\.parquet cannot be read"):
        store.read(1)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "step-000002.parquet")
    with pytest.raises(InputError, match="not a rollout file"):
        store.read(2)


def test_gold_is_found_by_usual_names_or_as_told():
    assert gold_of({"answer": "a", "gold": "g"}) == "g"
    assert gold_of({"answer": "a", "mine": 3}, "mine") == "3"
    assert gold_of({"answer": "a"}, "mine") is None
    assert gold_of({"x": 1}) is None


def test_history_merges_lines_of_one_step():
    history = from_lines([{"step": 2, "a": 1}, {"step": 1, "a": 0.5, "flag": True}, {"step": 2, "b": 3, "a": 2}])
    assert history.steps.tolist() == [1, 2]
    assert history.columns["a"].tolist() == [0.5, 2.0]
    assert "flag" not in history.columns
    assert "b" in history
    assert history.series("b")[0].tolist() == [2]


def test_malformed_lines_are_skipped_and_said(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "a": 1}\nnot json\n[1]\n{"a": 2}\n\xff\xfe\n{"step": 2, "a": 3}\n{"step": 3, "a"')
    history = read_metrics(path)
    assert history.columns["a"].tolist() == [1.0, 3.0]
    assert "4 line(s) are not JSON objects" in history.warnings[0]
    assert "without a whole-number `step`" in history.warnings[1]


def test_a_huge_file_is_read_at_both_ends(tmp_path, monkeypatch):
    from assay.monitoring import history as module

    monkeypatch.setattr(module, "MAX_BYTES", 40_000)
    monkeypatch.setattr(module, "HEAD_BYTES", 10_000)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "a": {step}}}\n' for step in range(10_000)))
    history = read_metrics(path)
    assert history.steps[0] == 0
    assert history.steps[-1] == 9_999
    assert history.columns["a"].tolist() == history.steps.tolist()
    assert 1_000 < len(history) < 2_500
    assert "only its first" in history.warnings[0]


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_metrics(tmp_path)
