"""The README's Python runs as it stands, with a tiny model and one step in place of the real ones."""

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_python_example_runs(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    small = {
        '"smollm2"': repr(str(tiny_folder("llama"))),
        "steps=300": "steps=1, prompts_per_step=2, console='quiet'",
        "max_completion_length=256": "max_completion_length=8",
        "num_generations=8": "num_generations=2",
    }
    for real, tiny in small.items():
        assert real in block
        block = block.replace(real, tiny)
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(8)]
    names = {"rows": rows}
    exec(block, names)
    assert names["result"].summary["steps"] == 1


def test_every_linked_page_exists():
    root = Path(__file__).parents[2]
    for page in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / page).exists(), page
