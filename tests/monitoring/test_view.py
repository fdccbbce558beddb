"""The rollouts browser over a real socket: filters, hostile text, other machines' requests, re-scoring, size."""

import http.client
import json
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.errors import InputError
from assay.monitoring.schema import SCHEMA, rows_of_groups
from assay.monitoring.sources import Run, open_run
from assay.monitoring.store import RolloutStore
from assay.monitoring.viewer import Filter, RolloutServer, find_groups, prompt_history
from assay.monitoring.viewer.rescore import Rescorer, group_of_rows
from assay.records import Finish, Judgement, Outcome

HOSTILE = '<script>document.title="PWNED"</script><img src=x onerror=alert(1)> \\boxed{42}'


@pytest.fixture
def run(tmp_path, completion, group):
    store = RolloutStore(tmp_path / "rollouts")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5, "time/unix": 1}\n')
    for step in range(1, 6):
        right = completion(5, 1.0, True, text="we get \\boxed{42}")
        wrong = completion(20, 0.0, False, text=HOSTILE, finish=Finish.LENGTH, tags={"flags": ["exit"]})
        wrong.advantage = -1.0
        right.advantage = 0.5
        store.write(step, [group([right, wrong], key="a"), group([right, right], key=f"b{step}")])
    return open_run(tmp_path)


@pytest.fixture
def serve(run):
    started = []

    def start(**options):
        server = RolloutServer(run, port=0, **options)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def call(server, path, body=None, **headers):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    connection.request("POST" if body is not None else "GET", path, body, headers)
    answer = connection.getresponse()
    return answer, answer.read()


def shown(run, **options):
    return [(item["step"], item["group"]) for item in find_groups(run.rollouts, Filter(**options))["groups"]]


def test_filters(run):
    assert len(shown(run)) == 10
    assert shown(run, step=3) == [(3, 0), (3, 1)]
    assert shown(run, mixed=True) == [(step, 0) for step in (5, 4, 3, 2, 1)]
    assert shown(run, truncated=True, step=2) == [(2, 0)]
    assert shown(run, flagged=True, step=2) == [(2, 0)]
    assert shown(run, outcome="wrong", step=1) == [(1, 0)]
    assert shown(run, max_reward=0.5, step=1) == [(1, 0)]
    assert shown(run, query="ONERROR", step=4) == [(4, 0)]
    assert shown(run, query="nowhere") == []
    assert shown(run, task="other") == []


def test_only_matching_completions_are_marked_as_such(run):
    group = find_groups(run.rollouts, Filter(step=1, truncated=True))["groups"][0]
    assert [item["matches"] for item in group["completions"]] == [False, True]


def test_sorting_by_what_is_asked(run):
    assert shown(run, step=1, sort="advantage")[0] == (1, 0)
    assert shown(run, step=1, sort="length")[0] == (1, 0)
    with pytest.raises(InputError, match="sort 'beauty'"):
        Filter(sort="beauty")


def test_paging_shows_every_group_once(run):
    seen, before, offset = [], None, 0
    while True:
        page = find_groups(run.rollouts, Filter(), before, limit=3, offset=offset)
        seen += [(item["step"], item["group"]) for item in page["groups"]]
        before, offset = page["next_before"], page["next_offset"]
        if before is None:
            break
    assert seen == shown(run)
    assert len(set(seen)) == 10


def test_one_prompt_through_time(run):
    assert [item["step"] for item in prompt_history(run.rollouts, "a")] == [1, 2, 3, 4, 5]
    assert [item["step"] for item in prompt_history(run.rollouts, "b4")] == [4]


def test_the_page_and_its_data(serve):
    server = serve()
    assert server.server_address[0] == "127.0.0.1"
    answer, body = call(server, "/")
    assert answer.status == 200
    assert b"app.js" in body
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    answer, body = call(server, "/api/groups?step=1")
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert json.loads(body)["groups"][0]["completions"][1]["text"] == HOSTILE
    assert json.loads(call(server, "/api/run")[1])["steps"] == [1, 2, 3, 4, 5]
    tokens = json.loads(call(server, "/api/tokens?step=1&group=0&sample=0")[1])
    assert tokens["token_ids"] == [0, 1, 2, 3, 4]
    assert tokens["sampling_logps"] == [-0.5] * 5


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/groups?step=x", 400, "invalid literal"),
        ("/api/groups?sort=beauty", 400, "does not exist"),
        ("/api/tokens?step=1&group=9&sample=0", 400, "no completion 9/0"),
        ("/api/tokens?step=1", 404, "not found"),
        ("/../../etc/passwd", 404, "not found"),
        ("/api/nothing", 404, "not found"),
    ],
)
def test_wrong_questions_get_an_answer(serve, path, status, message):
    answer, body = call(serve(), path)
    assert answer.status == status
    assert message in json.loads(body)["error"]


def test_other_sites_get_nothing(serve):
    server = serve(rescorer=Rescorer("math"))
    body = json.dumps({"step": 1, "group": 0})
    assert call(server, "/api/run", Host="evil.example")[0].status == 403
    kind = {"Content-Type": "application/json"}
    assert call(server, "/api/rescore", body, Origin="http://evil.example", **kind)[0].status == 403
    assert call(server, "/api/rescore", body, **{"Content-Type": "text/plain"})[0].status == 415
    assert call(server, "/api/rescore", body, **kind)[0].status == 200


def test_rescoring_uses_the_named_verifier_as_it_is_now(serve, tmp_path, run):
    verifier = tmp_path / "mine.py"
    verifier.write_text("def mine(completions, **kwargs):\n    return [0.25] * len(completions)\n")
    server = serve(rescorer=Rescorer(f"{verifier}:mine"))
    body, kind = json.dumps({"step": 2, "group": 0}), {"Content-Type": "application/json"}
    before = {path: path.read_bytes() for path in (tmp_path / "rollouts").iterdir()}
    first = json.loads(call(server, "/api/rescore", body, **kind)[1])
    assert [item["reward"] for item in first] == [0.25, 0.25]
    verifier.write_text("def mine(completions, **kwargs):\n    return [float('42' in c) for c in completions]\n")
    second = json.loads(call(server, "/api/rescore", body, **kind)[1])
    assert [item["reward"] for item in second] == [1.0, 1.0]
    assert {path: path.read_bytes() for path in (tmp_path / "rollouts").iterdir()} == before


def test_without_a_verifier_rescoring_says_what_to_do(serve):
    answer, body = call(serve(), "/api/rescore", "{}", **{"Content-Type": "application/json"})
    assert answer.status == 400
    assert "--verifier" in json.loads(body)["error"]
    with pytest.raises(InputError):
        Rescorer("no_such_reward")


def test_export_of_marked_rows(serve):
    body = json.dumps({"ids": ["1/0/1", "3/1/0"]})
    answer, raw = call(serve(), "/api/export", body, **{"Content-Type": "application/json"})
    assert answer.status == 200
    rows = [json.loads(line) for line in json.loads(raw)["jsonl"].splitlines()]
    assert [(row["step"], row["group"], row["sample"]) for row in rows] == [(1, 0, 1), (3, 1, 0)]
    assert rows[0]["completion"] == HOSTILE
    assert rows[0]["gold"] == "42"


def test_restored_records_are_what_was_stored(run):
    rows = run.rollouts.read(1)[:2]
    restored = group_of_rows(rows)
    again = rows_of_groups(1, [restored])
    for old, new in zip(rows, again):
        for name in ("prompt", "text", "token_ids", "loss_mask", "finish", "num_tokens", "prompt_key"):
            assert np.array_equal(old[name], new[name]), name


def test_a_million_completions_open_at_once(tmp_path):
    """4000 files stand for the directory; each is a link to one real file of 250 rows."""
    import os
    import time

    from assay.records import Completion, Group, Prompt, Segment

    def row(index):
        segment = Segment(np.arange(50), np.ones(50, bool), np.full(50, -0.5))
        return Completion([segment], Finish.STOP, "text", {"m": Judgement(Outcome.CORRECT, 1.0)}, 1.0, True)

    groups = [Group(Prompt("p", (1,), {"answer": "1"}), [row(i) for i in range(10)]) for _ in range(25)]
    folder = tmp_path / "rollouts"
    first = RolloutStore(folder).write(1, groups)
    for step in range(2, 4001):
        os.link(first, folder / f"step-{step:06d}.parquet")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5, "time/unix": 1}\n')
    started = time.monotonic()
    run = open_run(tmp_path)
    server = RolloutServer(run, port=0)
    overview = server.overview()
    page = find_groups(run.rollouts, Filter())
    elapsed = time.monotonic() - started
    server.server_close()
    assert len(overview["steps"]) * overview["rows_in_newest"] == 1_000_000
    assert len(page["groups"]) == 20
    # The promise is 3 s; a quarter of a second is usual, so only a change of order fails here.
    assert elapsed < 3


def test_trl_and_verl_rollouts_are_read(tmp_path):
    trl = tmp_path / "trl" / "completions"
    trl.mkdir(parents=True)
    columns = {
        "step": [7] * 4,
        "prompt": [[{"role": "user", "content": "q"}]] * 4,
        "completion": [[{"role": "assistant", "content": f"a{index}"}] for index in range(4)],
        "accuracy_reward": [1.0, 0.0, None, 1.0],
        "solution": ["4"] * 4,
        "advantage": [0.5, -0.5, 0.0, 0.5],
    }
    pq.write_table(pa.table(columns), trl / "completions_00007.parquet")
    groups = find_groups(open_run(tmp_path / "trl").rollouts, Filter())["groups"]
    assert len(groups) == 1
    assert groups[0]["gold"] == "4"
    assert [item["text"] for item in groups[0]["completions"]] == ["a0", "a1", "a2", "a3"]
    assert [item["reward"] for item in groups[0]["completions"]] == [1.0, 0.0, None, 1.0]
    verl = tmp_path / "verl"
    verl.mkdir()
    lines = [{"input": f"q{i % 2}", "output": "o", "gts": "g", "score": float(i), "step": 3} for i in range(4)]
    (verl / "3.jsonl").write_text("\n".join(map(json.dumps, lines)))
    groups = find_groups(open_run(verl).rollouts, Filter())["groups"]
    assert [[item["reward"] for item in group["completions"]] for group in groups] == [[0.0, 2.0], [1.0, 3.0]]
    assert groups[0]["gold"] == "g"
    assert set(open_run(verl).rollouts.read(3)[0]) == set(SCHEMA.names)


def test_a_run_without_rollouts_is_one_clear_line(tmp_path, run):
    with pytest.raises(InputError, match="no rollouts"):
        RolloutServer(Run(tmp_path, run.history), port=0)


def test_a_taken_port_is_one_clear_line(serve):
    server = serve()
    with pytest.raises(InputError, match="give another --port"):
        RolloutServer(server.run, port=server.server_address[1])
