"""Two completions compared: pieces that add up to both texts, word by word; the page that shows them."""

import http.client
import json
import shutil
import subprocess
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import InputError
from assay.monitoring.sources import open_run
from assay.monitoring.store import RolloutStore
from assay.monitoring.viewer import RolloutServer
from assay.monitoring.viewer.diff import MOST_WORDS, diff_completions, diff_texts

HOSTILE = "<img src=x onerror=\"document.title='PWNED'\"> we add 3 and 4, so 8"


@given(st.text(alphabet="ab 1\n<", max_size=60), st.text(alphabet="ab 1\n<", max_size=60))
def test_pieces_add_up_to_both_texts(left, right):
    pieces = diff_texts(left, right)
    assert "".join(piece[0] for piece in pieces) == left
    assert "".join(piece[1] for piece in pieces) == right


def test_long_texts_are_compared_by_lines():
    left = "\n".join(f"line {index} of many" for index in range(MOST_WORDS))
    pieces = diff_texts(left, left.replace("line 7 ", "row 7 "))
    assert [piece for piece in pieces if piece[0] != piece[1]] == [("line 7 of many\n", "row 7 of many\n")]


@pytest.fixture
def run(tmp_path, completion, group):
    store = RolloutStore(tmp_path / "rollouts")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5, "time/unix": 1}\n')
    right = completion(5, 1.0, True, text="first we add 3 and 4, so 7")
    store.write(1, [group([right, completion(9, 0.0, False, text=HOSTILE)], key="a")])
    store.write(2, [group([right, right], key="a")])
    return open_run(tmp_path)


def test_completions_by_their_ids(run):
    found = diff_completions(run.rollouts, "1/0/0", "1/0/1")
    assert found["pieces"][-2:] == [(" we add 3 and 4, so ", " we add 3 and 4, so "), ("7", "8")]
    assert (found["left"]["reward"], found["right"]["correct"]) == (1.0, False)
    assert 0 < found["shared"] < 1
    assert diff_completions(run.rollouts, "1/0/0", "2/0/1")["shared"] == 1.0
    for wrong, message in (("1/0/9", "no completion 1/0/9"), ("9/0/0", "no completion"), ("x", "names no completion")):
        with pytest.raises(InputError, match=message):
            diff_completions(run.rollouts, "1/0/0", wrong)


@pytest.fixture
def server(run):
    started = RolloutServer(run, port=0)
    threading.Thread(target=started.serve_forever, daemon=True).start()
    yield started
    started.shutdown()
    started.server_close()


def test_over_the_socket(server):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    connection.request("GET", "/api/diff?left=1%2F0%2F0&right=1%2F0%2F1")
    answer = connection.getresponse()
    assert answer.status == 200
    assert json.loads(answer.read())["right"]["id"] == "1/0/1"


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs headless Chromium; none is on the PATH")
def test_two_completions_in_a_browser(server, tmp_path):
    """`?compare=LEFT,RIGHT` opens the page with the two side by side, as a link to send does."""
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-extensions", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=8000", "--dump-dom",
            f"{server.url}?compare=1/0/0,1/0/1",
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    html = done.stdout
    assert "<title>PWNED" not in html
    dialog = html[html.index('<dialog id="diff"') : html.index("</dialog>")]
    assert " open" in dialog[:120]
    assert '<mark class="old">7</mark>' in dialog
    assert '<mark class="new">8</mark>' in dialog
    assert "&lt;" in dialog
    assert "<img" not in dialog
    assert "shared" in dialog
    assert not [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
