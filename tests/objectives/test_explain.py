"""`assay explain`, as scripts call it: a process, its standard output and its exit status."""

import json
import subprocess
import sys

import pytest

from assay.cli.explain import explain as command
from assay.errors import InputError
from assay.objectives import PRESETS, preset
from assay.objectives.explain import explain


def run(*arguments):
    line = [sys.executable, "-m", "assay.cli.main", "explain", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_the_command_that_scripts_call():
    done = run(
        "--preset", "grpo", "--lengths", "10,100", "--rewards", "1,0", "--max-completion-length", "100", "--json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    advantage = 0.5 / (0.5**0.5 + 1e-4)
    assert result["advantages"] == pytest.approx([advantage, -advantage])
    assert result["aggregation_weights"] == pytest.approx([1 / 20, 1 / 200])
    assert result["token_weights"] == pytest.approx([advantage / 20, -advantage / 200])


def test_a_mistake_is_one_line_and_status_2():
    done = run("--lengths", "10,x", "--rewards", "1,0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "assay: --lengths '10,x': expected numbers separated by commas, such as 10,100\n"


def test_table(capsys):
    command(preset="dapo", lengths="10,100", advantages="1,-1")
    table = capsys.readouterr().out
    assert "+0.009091" in table
    assert "aggregation" in table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": "10,100", "rewards": ["1"]}, "1 values for 2 lengths"),
        ({"preset": "gropo", "lengths": "1", "rewards": ["1"]}, "unknown preset 'gropo'"),
        ({"lengths": "10,100"}, "either rewards or advantages"),
        ({"lengths": "10", "rewards": ["1"], "fields": ["epsilon"]}, "name=value"),
        ({"lengths": "10", "rewards": ["1"], "fields": ["epsilon=far"]}, "epsilon"),
        ({"lengths": "0", "rewards": ["1"]}, "positive number of tokens"),
        ({"lengths": "1,2,3", "rewards": ["1,0,1"], "group_size": 2}, "do not make groups of 2"),
        ({"lengths": "10", "rewards": ["1"], "max_completion_length": 5}, "below a length of 10"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(InputError, match=message):
        command(**options)


def test_fields_and_several_reward_functions(capsys):
    command(preset="grpo", fields=["scale_rewards=none"], lengths="1,1", rewards=["1,0", "none,1"], weights="1,3",
            as_json=True)  # fmt: skip
    result = json.loads(capsys.readouterr().out)
    assert result["rewards"] == [1.0, 3.0]
    assert result["advantages"] == [-1.0, 1.0]


def test_list_names_every_preset(capsys):
    command(list_presets=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(PRESETS)]] == list(PRESETS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("grpo", (1 / 20, -1 / 200)), ("dapo", (1 / 110, -1 / 110)), ("dr_grpo", (1 / 200, -1 / 200))],
)
def test_length_bias(name, expected):
    result = explain(preset(name), [10, 100], advantages=[1.0, -1.0], max_completion_length=100)
    assert result.token_weights == pytest.approx(expected)
    assert result.gradients == pytest.approx(expected)


def test_difficulty_bias():
    """The wrong answer of a nearly solved group is pushed harder than one of an even group; the std widens the gap."""

    def pull(name, rewards):
        return explain(preset(name), [10] * 8, rewards=[rewards]).advantages[-1]

    nearly, even = [1, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0, 0]
    assert pull("grpo", nearly) / pull("grpo", even) == pytest.approx(2.475 / 0.9354, rel=1e-3)
    assert pull("dr_grpo", nearly) / pull("dr_grpo", even) == pytest.approx(0.875 / 0.5)


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "a_star_po"])
def test_gradient_is_the_product_where_the_policy_has_not_moved(name):
    result = explain(preset(name), [3, 9, 5, 4], rewards=[[1, 0, 1, 1]], group_size=2)
    assert result.gradients == pytest.approx(result.token_weights)


def test_clipping_shows_in_the_gradient():
    result = explain(preset("dapo"), [5, 5, 5, 5], advantages=[1, 1, -1, -1], ratios=[1.35, 0.7, 1.35, 0.7])
    assert [g == 0 for g in result.gradients] == [True, False, False, True]


def test_groups_without_signal_and_missing_rewards():
    result = explain(preset("dapo"), [5, 5, 5, 5], rewards=[[1, 1, 1, 0]], group_size=2)
    assert result.no_signal == [True, True, False, False]
    assert result.aggregation_weights[2] == pytest.approx(1 / 10)  # the dead group's tokens do not count
    missing = explain(preset("grpo"), [5, 5, 5], rewards=[[1, None, 0]])
    assert missing.rewards[1] is None
    assert missing.advantages[1] == 0


def test_truncated_completions_are_masked_where_the_objective_says_so():
    spec = preset("dapo", mask_truncated_completions=True)
    result = explain(spec, [5, 8], rewards=[[1, 0]], truncated=[False, True])
    assert result.gradients[1] == 0
    assert result.aggregation_weights == pytest.approx([1 / 5, 0])
