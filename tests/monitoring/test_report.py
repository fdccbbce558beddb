"""The report: self-contained, escaped, drawn from what there is, and the pages as a real browser shows them."""

import json
import re
import shutil
import subprocess
import threading
import xml.etree.ElementTree as ElementTree

import pytest
from typer.testing import CliRunner

from assay.errors import InputError
from assay.monitoring.doctor import diagnose
from assay.monitoring.history import from_lines
from assay.monitoring.report import CHARTS, draw_charts, write_report
from assay.monitoring.report.data import ReportData
from assay.monitoring.simulation import FAULTS, World, simulate, write_run, write_trl
from assay.monitoring.sources import Run, open_run
from assay.monitoring.viewer import RolloutServer

HOSTILE = "<script>document.title='PWNED'</script><img src=x onerror=\"document.title='PWNED'\"> \\boxed{1}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A run with a fault, flags and hostile completions."""
    world = World(
        seed=1,
        steps=60,
        stored_steps=4,
        weights={"accuracy": 1.0, "format": 0.2},
        text=lambda correct, finished, prompt, rng: HOSTILE,
        flags=lambda correct, rng: ["sys.exit"] if correct else [],
        kl=lambda x: 0.001 + x / 10,
    )
    return write_run(simulate(world), tmp_path_factory.mktemp("runs") / "hostile <b>run")


@pytest.fixture(scope="module")
def page(directory):
    run = open_run(directory)
    return write_report(run, diagnose(run), directory / "report.html")


def test_nothing_is_loaded_and_nothing_runs(page):
    html = page.read_text()
    assert "default-src 'none'" in html
    assert "<script" not in html
    # Namespaces of SVG are names, not addresses that are fetched.
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", html)) - {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not addresses
    assert not re.findall(r"(?:src|href)=\"(?!#)", html)
    assert "<b>run" not in html


def test_completions_are_text(page):
    html = page.read_text()
    assert "&lt;script&gt;document.title" in html
    assert HOSTILE not in html


def test_the_verdict_leads_to_its_evidence(page):
    html = page.read_text()
    assert "HK05" in html
    linked = re.findall(r'href="#(r-[\d-]+)"', html)
    assert linked
    assert all(f'id="{name}"' in html for name in linked)


def test_charts_are_valid_svg_with_unique_ids(directory):
    run = open_run(directory)
    drawn = draw_charts(ReportData(run, diagnose(run)))
    assert len(drawn) >= 14
    ids = []
    for chart, svg in drawn:
        ElementTree.fromstring(svg)
        assert f'aria-label="{chart.title}"' in svg
        ids += re.findall(r' id="([^"]+)"', svg)
        for used in re.findall(r"url\(#([^)]+)\)", svg):
            assert f'id="{used}"' in svg
    assert len(ids) == len(set(ids))


def test_there_are_twenty_charts_and_each_may_be_absent():
    assert len(CHARTS) >= 20
    empty = Run(path=__import__("pathlib").Path("x.jsonl"), history=from_lines([]))
    assert draw_charts(ReportData(empty, diagnose(empty))) == []


def test_one_step_is_enough_for_a_report(tmp_path):
    directory = write_run(simulate(World(seed=1, steps=1)), tmp_path / "run")
    run = open_run(directory)
    assert write_report(run, diagnose(run), tmp_path / "a.html").stat().st_size > 10_000


def test_machine_readable_companions(page):
    payload = json.loads(page.with_suffix(".json").read_text())
    assert payload["findings"][0]["id"] == "HK05"
    assert payload["card"]["steps"] == "60 of 60"
    assert "**error HK05**" in page.with_suffix(".md").read_text()


@pytest.fixture
def app():
    import typer

    from assay.cli.report import report

    application = typer.Typer()
    application.command()(report)
    return application


def test_the_command_reads_foreign_logs_too(app, tmp_path):
    log = write_trl(simulate(FAULTS["cap too low"].plant(World(seed=1))), tmp_path / "trainer_state.json")
    target = tmp_path / "out.html"
    result = CliRunner().invoke(app, [str(log), "-o", str(target), "--json", "--set", "num_generations=8"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["html"] == str(target)
    assert "TRL log history" in target.read_text()


@pytest.mark.parametrize(("name", "message"), [("a.pdf", "end in .html"), ("no/such/place/a.html", "does not exist")])
def test_bad_targets_are_one_line(app, directory, tmp_path, name, message):
    result = CliRunner().invoke(app, [str(directory), "-o", str(tmp_path / name)])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


# --- in a browser ---------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs headless Chromium; none is on the PATH")


def dom(address, profile):
    """The page as it stands after its scripts ran."""
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
            "--enable-logging=stderr", f"--user-data-dir={profile}", "--virtual-time-budget=8000", "--dump-dom",
            address,
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, console


@pytest.mark.browser
@needs_chromium
def test_the_report_in_a_browser(page, tmp_path):
    html, console = dom(page.as_uri(), tmp_path / "profile")
    assert "<title>hostile &lt;b&gt;run · assay report</title>" in html
    assert html.count("<figure") >= 14
    assert not console


@pytest.mark.browser
@needs_chromium
def test_the_rollouts_in_a_browser(directory, tmp_path):
    server = RolloutServer(open_run(directory), port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        html, console = dom(server.url, tmp_path / "profile")
    finally:
        server.shutdown()
        server.server_close()
    assert "PWNED</title>" not in html
    # Twenty groups, and the page's own template of one.
    assert html.count('class="group"') == 21
    assert "&lt;script&gt;document.title" in html
    assert "<img" not in html
    assert not console
