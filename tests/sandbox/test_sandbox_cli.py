"""assay sandbox, assay sandbox run and assay scan as a user calls them."""

import json
import subprocess
import sys

import pytest


def assay(*args, cwd=None):
    return subprocess.run([sys.executable, "-m", "assay.cli.main", *args], capture_output=True, text=True, cwd=cwd)


@pytest.fixture(scope="module")
def status():
    return assay("sandbox", "--json")


def test_sandbox_says_level_and_probes(status):
    report = json.loads(status.stdout)
    assert set(report) >= {"level", "probes"}
    assert all({"promise", "held"} <= set(probe) for probe in report["probes"])
    assert len(report["probes"]) >= 10
    safe = report["level"] in ("restricted", "isolated")
    assert status.returncode == (0 if safe else 1)


def test_probes_of_the_level_are_the_ones_that_held(status):
    report = json.loads(status.stdout)
    order = ["limits-only", "no-read-wall", "restricted", "isolated"]
    for probe in report["probes"]:
        if order.index(probe["needed_for"]) <= order.index(report["level"]):
            assert probe["held"], probe


@pytest.mark.parametrize(
    ("program", "code", "ended"),
    [("print(input()[::-1])", 0, "exited"), ("1/0", 1, "exited"), ("while True: pass", 1, "cpu_limit")],
)
def test_run_one_program(tmp_path, program, code, ended):
    (tmp_path / "p.py").write_text(program)
    (tmp_path / "in").write_text("abc\n")
    done = assay("sandbox", "run", "p.py", "--stdin", "in", "--cpu", "1", "--wall", "60", "--json", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    result = json.loads(done.stdout)
    assert result["ended"] == ended
    assert result["usage"]["wall_s"] > 0
    if code == 0:
        assert result["stdout"] == "cba\n"


def test_run_shows_output_and_usage_to_a_person(tmp_path):
    (tmp_path / "p.py").write_text("print('hello')")
    done = assay("sandbox", "run", "p.py", cwd=tmp_path)
    assert done.stdout == "hello\n"
    assert "exit status 0" in done.stderr
    assert "CPU" in done.stderr


def test_a_program_cannot_write_control_sequences_to_the_terminal(tmp_path):
    (tmp_path / "p.py").write_text("print('\\x1b]0;title\\x07\\x1b[2J héllo')")
    done = assay("sandbox", "run", "p.py", cwd=tmp_path)
    assert "\x1b" not in done.stdout
    assert "héllo" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "missing.py"], "missing.py does not exist"),
        (["run", "p.py", "--cpu", "0"], "cpu_seconds is 0"),
        (["run", "p.py", "--require", "limits-only"], "allow_unsafe"),
        (["run", "p.py", "--preload", "no_such_package"], "no_such_package"),
    ],
)
def test_what_cannot_run_is_one_line_and_status_2(tmp_path, args, message):
    (tmp_path / "p.py").write_text("print(1)")
    done = assay("sandbox", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_scan(tmp_path):
    rows = [
        {"code": "import sys\nsys.exit(0)"},
        {"code": "def f(a, b): return a - b"},
        {"completion": "Look:\n```python\nimport os\nos._exit(0)\n```"},
        {"completion": [{"role": "assistant", "content": "```python\nprint(1)\n```"}]},
    ]
    file = tmp_path / "programs.jsonl"
    file.write_text("\n\n".join(map(json.dumps, rows)))
    done = assay("scan", str(file), "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert (report["programs"], report["flagged"], report["counts"]) == (4, 2, {"early_exit": 2})
    assert [(finding["row"], finding["line"]) for finding in report["findings"]] == [(1, 2), (5, 2)]
    plain = assay("scan", str(file))
    assert "programs.jsonl:1, line 2: early_exit (high): sys.exit(0)" in plain.stdout
    assert "2 of 4 programs flagged" in plain.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "line 1 is not JSON"), ("[]", "line 1 is list"), ('{"text": 1}', "has no 'completion'")],
)
def test_scan_names_the_line_that_is_wrong(tmp_path, text, message):
    (tmp_path / "x.jsonl").write_text(text)
    done = assay("scan", str(tmp_path / "x.jsonl"))
    assert done.returncode == 2
    assert message in done.stderr


def test_scan_of_honest_programs_is_fine(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"code": "def f(): pass"}')
    assert assay("scan", str(tmp_path / "x.jsonl")).returncode == 0
