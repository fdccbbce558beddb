"""No attack is paid, gets out, outlives its limits, harms a bystander or spoils the honest run beside it."""

import runpy
from pathlib import Path

import pytest

CORPUS = runpy.run_path(str(Path(__file__).with_name("corpus.py")))
BOTH = [
    *CORPUS["CHEATS"],
    *CORPUS["ESCAPES"],
    *CORPUS["BOMBS"],
    *(f"honest_{name}" for name in CORPUS["HONEST"]),
    "nothing_is_left",
]
ISOLATED = [f"honest_{name}" for name in CORPUS["HONEST_ISOLATED"]]
OTHERS = {
    "isolated-user": {"level": "isolated", "uid": 5001},
    "restricted-user": {"level": "restricted", "uid": 5001},
    "landlock-1": {"level": "restricted", "uid": 0, "landlock_abi": 1},
    "landlock-1-user": {"level": "restricted", "uid": 5001, "landlock_abi": 1},
    "landlock-3": {"level": "restricted", "uid": 0, "landlock_abi": 3},
    "own-user-id": {"level": "restricted", "uid": 0, "python": "/usr/bin/python3"},
    "pod": {"level": "isolated", "uid": 0, "pod": True, "python": "/usr/bin/python3"},
    "docker": {"level": "restricted", "uid": 0, "docker": True},
    "docker-user": {"level": "restricted", "uid": 5001, "docker": True},
}


@pytest.mark.parametrize("name", [*BOTH, *ISOLATED])
def test_isolated(name, attack_outcomes):
    assert attack_outcomes(level="isolated", uid=0)["attacks"][name] == ""


@pytest.mark.parametrize("name", BOTH)
def test_restricted(name, attack_outcomes):
    assert attack_outcomes(level="restricted", uid=0)["attacks"][name] == ""


@pytest.mark.slow
@pytest.mark.parametrize("config", OTHERS.values(), ids=OTHERS)
def test_other_users_and_hosts(config, attack_outcomes):
    if "python" in config and not Path(config["python"]).exists():
        pytest.skip(f"there is no {config['python']} here")
    result = attack_outcomes(**config)
    assert result["level"] == config["level"]
    assert set(BOTH) <= set(result["attacks"])
    assert {name: wrong for name, wrong in result["attacks"].items() if wrong} == {}


def test_corpus_is_not_thinned_out():
    assert len(CORPUS["CHEATS"]) >= 120
    assert len(CORPUS["ESCAPES"]) >= 85
    assert len(CORPUS["BOMBS"]) >= 25
