"""Grading real programs: every status, every kind of test, and what the issue's cheats earn."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.rewards.code import extract_program, verify_task
from assay.rewards.code_compare import Policy
from assay.rewards.code_grade import Status, mark_answer
from assay.rewards.code_tests import AssertTests, CallTests, Case, StdioTests, parse_tests
from assay.sandbox import Limits
from assay.sandbox.wire import WireError

SQUARES = CallTests("f", (((3, 4), 25), ((6, 8), 100), ((0, 1), 1)))
SHORT = Limits(cpu_seconds=1, wall_seconds=60, memory_mb=128)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("def f(a, b): return a * a + b * b", Status.PASSED),
        ("def f(a, b): return a + b", Status.WRONG_ANSWER),
        ("def f(a, b): return a / 0", Status.RUNTIME_ERROR),
        ("1 / 0", Status.LOAD_ERROR),
        ("def f(a, b) return 1", Status.LOAD_ERROR),
        ("def g(a, b): return 1", Status.NO_ENTRY_POINT),
        ("def f(a, b):\n    while True: pass", Status.CPU_LIMIT),
        ("def f(a, b): return bytearray(1 << 30)", Status.MEMORY_LIMIT),
        ("x = bytearray(1 << 30)", Status.MEMORY_LIMIT),
        ("import os\ndef f(a, b):\n    os.write(1, b'x' * (1 << 20))\n    return a * a + b * b", Status.OUTPUT_LIMIT),
        ("import os\ndef f(a, b): os.write(3, b'garbage' * 9)", Status.PROTOCOL_ERROR),
        ("def f(a, b): return 'x' * (2 << 20)", Status.PROTOCOL_ERROR),
        ("import os\ndef f(a, b): os._exit(0)", Status.RUNTIME_ERROR),
    ],
)
def test_statuses(executor, program, status):
    grade = executor.grade(program, SQUARES, SHORT)
    assert grade.status is status, grade
    assert grade.reward == float(status is Status.PASSED)
    assert grade.level == executor.sandbox.isolation.level.label


def test_wall_limit(executor):
    grade = executor.grade("import time\ndef f(a, b): time.sleep(50)", SQUARES, Limits(wall_seconds=0.3))
    assert (grade.status, grade.reward, grade.retried) == (Status.WALL_LIMIT, 0.0, 1)


def test_a_foreign_system_call_is_named(executor):
    program = (
        "import ctypes, mmap, os\ndef f(a, b):\n    m = mmap.mmap(-1, 4096, prot=7)\n"
        "    m.write(bytes.fromhex('b814000000cd80c3'))\n"
        "    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    )
    import platform

    if platform.machine() != "x86_64":
        pytest.skip("int 0x80 is an x86 instruction")
    grade = executor.grade(program, SQUARES, SHORT)
    assert grade.status is Status.BLOCKED_SYSCALL
    assert "blocked_syscall" in grade.signals


def test_partial_credit_counts_the_cases(executor):
    program = "def f(a, b): return 25 if a == 3 else 1 if a == 0 else None"
    grade = executor.grade(program, SQUARES, all_cases=True)
    assert (grade.passed, grade.total, grade.share, grade.reward) == (2, 3, pytest.approx(2 / 3), 0.0)
    assert executor.grade(program, SQUARES).passed == 1  # stops at the first failure


def test_right_answers_do_not_excuse_a_bad_end(executor):
    program = "import assay.sandbox.harness as h, os\nh.flush = lambda: os._exit(1)\ndef f(a, b): return a * a + b * b"
    grade = executor.grade(program, SQUARES)
    assert (grade.status, grade.passed, grade.reward) == (Status.RUNTIME_ERROR, 3, 0.0)


def test_methods_keyword_arguments_and_rich_plain_data(executor):
    method = "class Solution:\n    def f(self, xs, k=1): return [x * k for x in xs]"
    for entry in ("Solution.f", "Solution().f"):
        assert executor.grade(method, CallTests(entry, (Case(([1, 2],), [3, 6], {"k": 3}),))).status is Status.PASSED
    echo = CallTests(
        "f", tuple(((x,), x) for x in ((1, 2), {1: "a"}, {1, 2}, b"x", 10**30, 1.5, None, 1 + 2j, frozenset([1])))
    )
    assert executor.grade("def f(x): return x", echo).passed == 9


def test_well_known_library_types_count_as_what_they_equal(executor):
    program = "from collections import Counter\ndef f(s): return Counter(s)"
    assert executor.grade(program, CallTests("f", ((("aab",), {"a": 2, "b": 1}),))).reward == 1.0


def test_an_argument_changed_in_place_can_be_what_is_compared(executor):
    tests = CallTests("f", ((([3, 1, 2],), [1, 2, 3]),), argument=0)
    assert executor.grade("def f(xs): xs.sort()", tests).reward == 1.0
    assert executor.grade("def f(xs): return sorted(xs)", tests).reward == 0.0


def test_state_is_kept_between_cases_unless_asked_otherwise(executor):
    counter = "n = 0\ndef f():\n    global n\n    n += 1\n    return n"
    assert executor.grade(counter, CallTests("f", (((), 1), ((), 2)))).reward == 1.0
    assert executor.grade(counter, CallTests("f", (((), 1), ((), 1)), fresh_process_per_case=True)).reward == 1.0


def test_standard_input_and_output(executor):
    tests = StdioTests((("3 4\n", "7\n"), ("1 1\n", "2\n")))
    program = "a, b = map(int, input().split())\nprint(a + b)\n"
    assert executor.grade(program, tests).reward == 1.0
    assert executor.grade(program + "exit()", tests).reward == 1.0
    assert executor.grade("print(7)", tests).passed == 1
    assert executor.grade(program + "raise SystemExit(1)", tests).status is Status.RUNTIME_ERROR
    close = StdioTests((("", "0.333333\n"),), Policy(float_tolerance=1e-4))
    assert executor.grade("print(1 / 3)", close).reward == 1.0


def test_a_stalled_case_is_run_again_by_itself_once(executor):
    tests = StdioTests((("0", "0\n"), ("60", "60\n"), ("0", "0\n")))
    grade = executor.grade("import time\nn = input()\ntime.sleep(int(n))\nprint(n)", tests, Limits(wall_seconds=0.8))
    assert (grade.status, grade.passed, grade.retried) == (Status.WALL_LIMIT, 1, 1)


def test_many_slow_cases_end_some_time(executor):
    tests = StdioTests((("", "1\n"),) * 40)
    slow = "x = sum(range(2_500_000))\nimport time; time.sleep(0.3); print(1)"
    grade = executor.grade(slow, tests, Limits(wall_seconds=1.5))
    assert grade.status is Status.WALL_LIMIT
    assert 0 < grade.passed < 20


def test_asserts_run_where_the_program_is_not(executor):
    tests = AssertTests("xs = [2, 1]\nassert f(xs) is None\nassert xs == [1, 2]\nassert candidate([3]) is None", "f")
    assert executor.grade("def f(xs): xs.sort()", tests).reward == 1.0
    assert executor.grade("def f(xs): return sorted(xs)", tests).reward == 0.0
    raising = AssertTests(
        "try:\n    f(0)\nexcept ZeroDivisionError as e:\n    assert 'division' in str(e)\nelse:\n    assert False", "f"
    )
    assert executor.grade("def f(x): return 1 / x", raising).reward == 1.0
    unit = AssertTests(
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(f(2), 4)\n", "f"
    )
    assert executor.grade("def f(x): return x * 2", unit).reward == 1.0
    assert executor.grade("def f(x): return x", unit).status is Status.WRONG_ANSWER
    method = AssertTests("assert Solution().f(2) == 4\nassert Solution.f(3) == 6", "Solution.f")
    assert executor.grade("class Solution:\n    def f(self, x): return x * 2", method).reward == 1.0


def test_tests_that_show_nothing_pay_nothing(executor):
    for text in ("f(1)", "assert True", "if f(1): assert True"):
        assert executor.grade("def f(x): return 0", AssertTests(text, "f")).reward == 0.0


def test_hidden_test_text_never_reaches_the_program(executor):
    tests = AssertTests("SECRET = 'marker-9c1'\nassert f() == SECRET", "f")
    program = (
        "import gc, sys\ndef f():\n    for o in gc.get_objects():\n        if not isinstance(o, dict): continue\n"
        "        for v in list(o.values()):\n"
        "            if isinstance(v, str) and 'marker' + '-' in v and len(v) < 99:\n"
        "                return v[v.index('marker' + '-'):][:10]\n"
    )
    assert executor.grade(program, tests).reward == 0.0


def test_verify_task_drops_tasks_whose_own_reference_fails(executor):
    row = {"kind": "calls", "entry": "f", "cases": [{"args": [3, 4], "expected": 25}]}
    assert verify_task(row, "def f(a, b): return a * a + b * b", executor).status is Status.PASSED
    assert verify_task(row, "def f(a, b): return a * b", executor).status is Status.WRONG_ANSWER


def test_results_stream_and_a_slow_program_holds_nobody(executor):
    jobs = [("import time\ndef f(a, b):\n    time.sleep(0.7)\n    return a * a + b * b", SQUARES)]
    jobs += [("def f(a, b): return a * a + b * b", SQUARES)] * 8
    order = [index for index, grade in executor.grade_many(jobs) if grade.reward == 1.0]
    assert sorted(order) == list(range(9))
    assert order[-1] == 0

    async def stream():
        return [index async for index, _ in executor.grade_stream(jobs[1:4])]

    assert sorted(asyncio.run(stream())) == [0, 1, 2]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["$", "v", "text", "raised"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FRAMES = st.dictionaries(
    st.sampled_from(["value", "after", "raised", "load_error", "no_entry", "not_plain", "text", "message"]),
    JSON,
    max_size=4,
)


@given(FRAMES)
@settings(max_examples=300)
def test_no_answer_frame_can_break_the_marking_or_pass_by_accident(frame):
    case = Case((1,), ["never", "equal"])
    for tests in (CallTests("f", (case,)), CallTests("f", (case,), argument=0)):
        try:
            assert mark_answer(frame, case, tests) is not None
        except WireError:
            continue


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nA\n```", "A\n"),
        ("first\n```python\nA\n```\nthen\n```py\nB\n```\ndone", "B\n"),
        ("```python\nA\n```\n```bash\nls\n```", "A\n"),
        ("```\nA\n```", "A\n"),
        ("~~~python\nA\n~~~", "A\n"),
        ("```python\nA", "A"),
        ("<think>```python\nA\n```</think>```python\nB\n```", None),
        ("<think>\n```python\nA\n```\n</think>\n```python\nB\n```", "B\n"),
        ("print(1)", "print(1)"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("```json\n{}\n```", None),
        ("", None),
        ("   \n", None),
        ("```python\n\n```", None),
    ],
)
def test_the_rule_of_extraction(text, program):
    found = extract_program(text)
    if program is None:
        assert found is None or text.startswith("<think>```")
        return
    assert found is not None
    assert found[0] == program
    assert text[slice(*found[1])] == program


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"kind": "magic"}, "the kinds are calls, stdio, asserts"),
        ({"kind": "calls", "cases": []}, "'entry' is missing|there is no case"),
        ({"kind": "calls", "entry": "f", "cases": []}, "there is no case"),
        ({"kind": "calls", "entry": "f", "cases": [{"args": [1]}]}, "'expected' is missing"),
        ({"kind": "stdio", "cases": [{"stdin": "1"}]}, "'stdout' is missing"),
        ({"kind": "asserts", "text": "assert (", "entry": "f"}, "does not parse"),
        ({"kind": "asserts", "text": "assert 1", "entry": ""}, "name of the function"),
        ({"kind": "calls", "entry": "f", "cases": [[[1], 2]], "float_tolerance": 7}, "float_tolerance is 7"),
        ("not json", "neither a mapping nor its JSON"),
        (5, "give a mapping"),
    ],
)
def test_bad_tests_are_named_in_one_line(row, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_tests(row)
    assert "\n" not in str(caught.value)


def test_literal_rows_say_what_json_cannot():
    tests = parse_tests(
        {"kind": "calls", "entry": "f", "literal": True, "cases": [{"args": "[{1: 'a'}]", "expected": "(1, {2})"}]}
    )
    assert tests.cases[0] == Case(({1: "a"},), (1, {2}))
    assert tests.policy == Policy()
