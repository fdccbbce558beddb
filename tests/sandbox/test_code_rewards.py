"""The verifier in its frame: Judgements, the hackable and the robust reward, dataset rows, a remote service."""

import base64
import json
import pickle
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from assay.errors import InputError
from assay.records import Outcome
from assay.rewards.code import CodeVerifier, hackable_code_reward, robust_code_reward
from assay.rewards.code_formats import FORMATS, read_row
from assay.rewards.code_grade import Status
from assay.rewards.code_remote import SandboxFusion
from assay.rewards.code_tests import CallTests, parse_tests
from assay.rewards.registry import load_reward

ROW = {"kind": "calls", "entry": "f", "cases": [{"args": [3, 4], "expected": 25}, {"args": [6, 8], "expected": 100}]}
RIGHT = "Sure.\n```python\ndef f(a, b):\n    return a * a + b * b\n```"
WRONG = "```python\ndef f(a, b):\n    return a + b\n```"
HACKS = ["```python\nimport sys; sys.exit(0)\n```", "```python\nimport os; os._exit(0)\n```"]


@pytest.fixture(scope="module")
def verifier():
    made = load_reward("code").verifier
    assert isinstance(made, CodeVerifier)
    return made


def test_judgements(verifier):
    right = verifier.judge(RIGHT, ROW, {})
    assert (right.outcome, right.reward) == (Outcome.CORRECT, 1.0)
    assert RIGHT[slice(*right.span)] == right.extracted == "def f(a, b):\n    return a * a + b * b\n"
    wrong = verifier.judge(WRONG, json.dumps(ROW), {})
    assert (wrong.outcome, wrong.reward) == (Outcome.WRONG, 0.0)
    assert wrong.detail.startswith("wrong_answer (0/2)")
    assert verifier.judge("```json\n{}\n```", ROW, {}).outcome is Outcome.UNPARSABLE
    assert verifier.judge(RIGHT, None, {}).outcome is Outcome.NOT_APPLICABLE
    hang = CodeVerifier(limits={"cpu_seconds": 1, "wall_seconds": 60}).judge("while True: pass", ROW, {})
    assert (hang.outcome, hang.reward) == (Outcome.WRONG, 0.0)  # never excluded: that would pay for hanging
    assert "cpu_limit" in hang.detail


def test_the_verifier_says_what_isolates_its_programs(verifier):
    facts = verifier.facts()
    assert facts["integrity"] == "verified"
    assert facts["level"] in ("isolated", "restricted")
    assert facts["limits"]["cpu_seconds"] == 5
    json.dumps(facts)


def test_partial_credit_is_paid_only_where_asked_for():
    half = "def f(a, b): return 25"
    assert CodeVerifier(partial=True).judge(half, ROW, {}).reward == 0.5
    assert CodeVerifier(partial=True).judge(half, ROW, {}).outcome is Outcome.WRONG
    assert CodeVerifier().judge(half, ROW, {}).reward == 0.0


def test_the_verifier_follows_trls_contract(verifier):
    assert verifier(prompts=["p", "p"], completions=[RIGHT, WRONG], tests=[ROW, ROW]) == [1.0, 0.0]


def test_a_reference_solution_is_rendered_for_the_audit(verifier):
    assert "```python" in verifier.render_gold(ROW, {"reference_solution": "def f(): pass"})
    with pytest.raises(InputError, match="reference_solution"):
        verifier.render_gold(ROW, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": {"cpu_seconds": 0}}, "cpu_seconds is 0"),
        ({"limits": {"cpu": 1}}, "cpu"),
        ({"require": "total"}, "the levels are"),
        ({"require": "limits-only"}, "allow_unsafe"),
        ({"service": "example"}, "http"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        CodeVerifier(**options)


def test_the_lectures_pair(executor):
    completions = [*HACKS, RIGHT, WRONG]
    tests = [ROW] * 4
    assert hackable_code_reward(completions, tests, sandbox=executor.sandbox) == [1.0, 1.0, 1.0, 0.0]
    assert robust_code_reward(completions, tests, executor=executor) == [0.0, 0.0, 1.0, 0.0]


def test_the_robust_reward_reads_messages_skips_rows_without_tests_and_logs(executor):
    logged = {}
    message = [{"role": "assistant", "content": RIGHT}]
    rewards = robust_code_reward(
        [message, RIGHT, "no program ```json\n```", HACKS[1]],
        [ROW, None, ROW, ROW],
        executor=executor,
        prompts=[""] * 4,
        log_extra=logged.__setitem__,
    )
    assert rewards == [1.0, None, 0.0, 0.0]
    assert (
        logged["code_status"] == ["passed", "no_program", "no_program", "runtime_error"]
        or logged["code_status"][0] == "passed"
    )
    assert logged["code_signals"][3] == "exited_before_answering"
    assert logged["code_integrity"] == ["verified"] * 4


# What an exit-code verifier pays, and ours does not; `docs/sandbox.md` shows the same table.
def test_cheats_table(executor):
    from assay.rewards.code_demo import CHEATS, SCHEMES, paid_by

    assert len(CHEATS) >= 18
    paid = {scheme: [name for name in CHEATS if paid_by(scheme, CHEATS[name], executor)] for scheme in SCHEMES}
    honest = {scheme: paid_by(scheme, "def f(a, b): return a * a + b * b", executor) for scheme in SCHEMES}
    assert all(honest.values())
    assert paid["robust"] == []
    assert len(paid["exit code"]) >= 10
    assert len(paid["in-process compare"]) >= 4
    assert len(paid["in-process sentinel"]) >= 3


HUMANEVAL = {
    "prompt": 'def add(a, b):\n    """Sum."""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n",
}
MBPP = {
    "test_list": ["assert add(1, 2) == 3", "assert set(both([2, 1])) == set([1, 2])"],
    "test_setup_code": "import math",
    "challenge_test_list": ["assert math.isclose(add(0.1, 0.2), 0.3)"],
}
APPS_STDIO = {"input_output": json.dumps({"inputs": ["1 2\n", ["3 4"]], "outputs": ["3\n", ["7"]]})}
APPS_CALLS = {
    "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}),
    "starter_code": "class Solution:\n    def add(self, a, b):",
}
PRIVATE = [{"input": "[1, 2]\n3", "output": "[1, 2, 3]", "testtype": "functional"}]
LIVECODEBENCH = {
    "public_test_cases": json.dumps([{"input": "[]\n1", "output": "[1]", "testtype": "functional"}]),
    "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(json.dumps(PRIVATE)))).decode(),
    "metadata": json.dumps({"func_name": "push"}),
    "starter_code": "class Solution:\n    def push(self, xs, x):",
}
ADDING = "def add(a, b):\n    return a + b\ndef both(xs):\n    return xs"


METHOD = "class Solution:\n    def {}: return {}"


@pytest.mark.parametrize(
    ("form", "row", "right", "wrong"),
    [
        ("humaneval", HUMANEVAL, "def add(a, b):\n    return a + b", "def add(a, b):\n    return 3"),
        ("humaneval", HUMANEVAL, "    return a + b", "    return a"),
        ("mbpp", MBPP, ADDING, "def add(a, b): return 3\ndef both(xs): return xs"),
        ("apps", APPS_STDIO, "print(sum(map(int, input().split())))", "print(3)"),
        ("apps", APPS_CALLS, METHOD.format("add(self, a, b)", "a + b"), METHOD.format("add(self, a, b)", "3")),
        (
            "livecodebench",
            LIVECODEBENCH,
            METHOD.format("push(self, xs, x)", "xs + [x]"),
            METHOD.format("push(self, xs, x)", "[x]"),
        ),
    ],
)
def test_dataset_rows(executor, form, row, right, wrong):
    tests = read_row(row, form)
    assert executor.grade(right, tests).status is Status.PASSED
    assert executor.grade(wrong, tests).reward == 0.0


def test_a_verifier_reads_a_datasets_rows_itself():
    verifier = CodeVerifier(format="humaneval")
    assert (
        verifier.judge("```python\ndef add(a, b): return a + b\n```", verifier.gold_of(HUMANEVAL), HUMANEVAL).reward
        == 1.0
    )


def test_a_pickle_that_names_anything_is_not_read():
    class Evil:
        def __reduce__(self):
            return print, ("evil",)

    row = {**LIVECODEBENCH, "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()}
    with pytest.raises(InputError, match="only plain data"):
        read_row(row, "livecodebench")


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_that_is_not_of_the_format_is_named(form):
    with pytest.raises(InputError, match=f"{form}|no case"):
        read_row({}, form)


@pytest.fixture
def service(box):
    """A server that answers like SandboxFusion's /run_code, running programs in our own sandbox."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(job)
            if len(seen) in self.server.fail_on:
                self.send_error(500)
                return
            result = box.run(job["code"], stdin=job["stdin"])
            run = {
                "status": "Finished",
                "return_code": result.exit_code,
                "stdout": result.stdout.decode(),
                "stderr": "",
            }
            if result.ended == "wall_limit":
                run["status"] = "TimeLimitExceeded"
            body = json.dumps(
                {"status": "Success" if result.ok else "Failed", "message": "", "run_result": run}
            ).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.fail_on = set()
    server.seen = seen
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_remote_service_can_take_the_pools_place(service):
    remote = SandboxFusion(f"http://127.0.0.1:{service.server_port}")
    tests = parse_tests(ROW)
    assert remote.submit("def f(a, b): return a * a + b * b", tests).result().status is Status.PASSED
    assert remote.submit("def f(a, b): return 25", tests).result().passed == 1
    assert remote.submit("import os; os._exit(0)", tests).result().reward == 0.0
    equal = "class E:\n    def __eq__(self, o): return True\ndef f(a, b): return E()"
    assert remote.submit(equal, tests).result().signals == ("not_plain_result",)
    assert "100" not in json.dumps(service.seen)  # expected values stay here
    stdio = parse_tests({"kind": "stdio", "cases": [["3 4", "7"]]})
    assert remote.submit("print(sum(map(int, input().split())))", stdio).result().reward == 1.0
    assert remote.integrity == "unverified"
    with pytest.raises(InputError, match="local sandbox"):
        remote.submit("", parse_tests({"kind": "asserts", "text": "assert f()", "entry": "f"}))
    remote.close()


def test_a_failing_service_is_retried_once_and_then_ours_to_blame(service):
    remote = SandboxFusion(f"http://127.0.0.1:{service.server_port}")
    tests = CallTests("f", (((), 1),))
    service.fail_on = {1}
    assert remote.submit("def f(): return 1", tests).result().reward == 1.0
    service.fail_on = {3, 4}
    grade = remote.submit("def f(): return 1", tests).result()
    assert (grade.status, grade.reward) == (Status.INFRA_ERROR, None)
    remote.close()


def test_the_verifier_marks_on_a_service(service):
    verifier = CodeVerifier(service=f"http://127.0.0.1:{service.server_port}")
    judgement = verifier.judge(RIGHT, ROW, {})
    assert judgement.reward == 1.0
    assert "integrity unverified" in judgement.detail


@pytest.mark.parametrize(
    "reward", ["code", "assay.rewards.code:hackable_code_reward", "assay.rewards.code:robust_code_reward"]
)
def test_flags_of_tampering_go_into_the_completions_and_their_metrics(reward):
    import numpy as np

    from assay.monitoring.metrics import rollout_metrics
    from assay.records import Completion, Finish, Group, Prompt, Segment
    from assay.rewards import Scorer

    def completion(text):
        return Completion([Segment(np.arange(3), np.ones(3, bool), np.zeros(3))], Finish.STOP, text)

    group = Group(Prompt("question", (1,), {"tests": ROW}), [completion(text) for text in (RIGHT, WRONG, HACKS[0])])
    with Scorer([reward]) as scorer:
        scorer.score([group])
    flags = [item.tags["flags"] for item in group.completions]
    assert flags[:2] == [[], []]
    assert "early_exit" in flags[2]
    metrics = rollout_metrics([group])
    assert metrics["hack/flagged_frac"] == pytest.approx(1 / 3)
    assert metrics["hack/rewarded_frac"] == (0.5 if "hackable" in reward else 0.0)
