"""The examples of docs/sandbox.md run, and its table of cheats is what the schemes pay."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_there_are_three_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("number", range(3))
def test_examples_run(number):
    done = subprocess.run([sys.executable, "-c", EXAMPLES[number]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_table_of_cheats_is_true(executor):
    from assay.rewards.code_demo import table

    for line in table(executor).splitlines():
        assert line in PAGE
