"""docs/verifiers.md says only what is true: its verifier runs, its table names every built-in and option."""

import inspect
import re
from pathlib import Path

from assay.rewards import BUILTINS, RewardSpec, Scorer
from assay.rewards.audit import audit
from assay.rewards.registry import resolve

PAGE = (Path(__file__).parents[2] / "docs" / "verifiers.md").read_text(encoding="utf-8")


def test_the_twenty_line_verifier_works(tmp_path, make_group):
    code = re.search(r"```python\n# my_verifier.py\n(.*?)```", PAGE, re.DOTALL).group(1)
    body = code[code.index("class ") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20
    (tmp_path / "my_verifier.py").write_text(code)
    spec = RewardSpec(f"{tmp_path / 'my_verifier.py'}:Palindrome")
    group = make_group(["I say Rotor.", "I say rotter", "", "aba"], min_length=4)
    with Scorer([spec]) as scorer:
        scorer.score([group])
    assert [str(c.judgements["Palindrome"].outcome) for c in group.completions] == [
        "correct",
        "wrong",
        "unparsable",
        "wrong",
    ]
    found = group.completions[0].judgements["Palindrome"]
    assert group.completions[0].text[slice(*found.span)] == "Rotor"
    report = audit(spec, [{"prompt": "p", "min_length": 3, "gold": ""}])
    assert report.gold_paid == 1


def test_the_table_names_every_built_in_and_its_options():
    for name, (_, line) in BUILTINS.items():
        row = re.search(rf"^\| `{name}` \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
        assert row, f"docs/verifiers.md: no row for {name}"
        assert row.group(1) == line
        assert set(re.findall(r"`(\w+)`", row.group(2))) == set(inspect.signature(resolve(name)).parameters), name
