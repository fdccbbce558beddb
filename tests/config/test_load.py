"""The configuration tree: what is filled in, what is refused, and in which words."""

import pytest
import yaml

from assay.config.load import build_config, flat_keys, load_recipe, plain, preset_names
from assay.config.schema import RunConfig
from assay.config.stored import check_resume, dump_config, read_stored
from assay.config.tree import leaves, merge, parse_overrides
from assay.errors import InputError

BASE = {"rewards": ["email_schema"]}


def refused(tree, **keywords):
    with pytest.raises(InputError) as caught:
        build_config(BASE | tree, **keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_preset_fills_in_and_any_key_overrides_it():
    config = build_config(BASE)
    assert (config.preset, config.objective.epsilon_high, config.refill.dynamic_sampling) == ("dapo", 0.28, True)
    config = build_config(BASE | {"objective": {"epsilon_high": 0.4}, "refill": {"dynamic_sampling": False}})
    assert (config.objective.epsilon_high, config.refill.dynamic_sampling) == (0.4, False)
    assert config.objective.count_no_signal is False, "what was not overridden stays DAPO's"


def test_no_preset_leaves_the_rooms_defaults():
    config = build_config(BASE | {"preset": None})
    assert config.objective.epsilon_high is None


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_valid_run(name):
    config = build_config(BASE | {"preset": name})
    assert config.preset == name


def test_dialect_takes_a_frameworks_constants():
    assert build_config(BASE | {"preset": "grpo", "dialect": "verl"}).objective.std_eps == 1e-6
    assert build_config(BASE | {"preset": "grpo"}).objective.std_eps == 1e-4
    asked = {"preset": "cispo", "dialect": "verl", "objective": {"epsilon_high": 0.28}}
    config = build_config(BASE | asked)
    assert config.objective.epsilon_high == 1.28, "verl writes the cap as a distance from 1"
    assert build_config(yaml.safe_load(dump_config(config, {}))) == config, "and is not applied twice on resume"


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"trian": {}}, "did you mean train"),
        ({"train": {"step": 3}}, "did you mean train.steps"),
        ({"num_generations": 8}, "it is rollout.num_generations"),
        ({"train": {"steps": "many"}}, "train.steps is 'many'"),
        ({"train": 3}, "train is a section"),
        ({"train": {"steps": 0}}, "train.steps is 0; it must be at least 1"),
        ({"preset": "dappo"}, "did you mean dapo"),
        ({"dialect": "trll"}, "trl"),
        ({"rollout": {"temperature": 0}}, "training needs it above 0"),
        ({"rollout": {"top_p": 0.9}}, "truncated sampling biases importance ratios"),
        ({"objective": {"loss_type": "cispo"}}, "give the cap itself"),
        ({"objective": {"loss_type": "grpoo"}}, "grpo"),
        ({"rewards": [{"fn": "math", "wieght": 2}]}, "did you mean weight"),
        ({"model": {"dtype": "float8"}}, "model.dtype is 'float8'"),
        ({"name": "a/b"}, "plain name"),
        ({"preset": "grpo", "rollout": {"num_generations": 1}}, "no other to be compared with"),
        ({"preset": "dapo", "rollout": {"num_generations": 1}}, "every group would be dropped"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tree, says):
    assert says in refused(tree)


def test_the_source_of_a_wrong_key_is_named():
    assert "command line: unknown key train.stesp" in refused({}, overrides={"train": {"stesp": 1}})
    assert "my.yaml: unknown key" in refused({"x": 1}, source="my.yaml")


@pytest.mark.parametrize("word", ["train.steps", "=3", "train.steps.deeper=1 train.steps=2"])
def test_malformed_overrides(word):
    with pytest.raises(InputError):
        parse_overrides(["train.steps=1", *word.split()])


def test_recipe_files(tmp_path):
    recipe = tmp_path / "r.yaml"
    for text, says in [("a: [", "not valid YAML"), ("- 1", "holds a list"), ("\xff", "unknown key|holds a str")]:
        recipe.write_text(text, encoding="latin-1" if text == "\xff" else "utf-8")
        with pytest.raises(InputError, match=says if text != "\xff" else "cannot be read"):
            load_recipe(recipe)
    with pytest.raises(InputError, match="does not exist"):
        load_recipe(tmp_path / "absent.yaml")
    recipe.write_text(yaml.safe_dump(BASE | {"train": {"steps": 5}}))
    assert load_recipe(recipe, ["train.steps=7", "seed=4"]).train.steps == 7


def test_python_keywords_find_their_sections():
    assert flat_keys({"num_generations": 4}) == {"rollout": {"num_generations": 4}}
    assert flat_keys({"train": {"steps": 2}, "train.seed_is_not_checked_here": 1})["train"]["steps"] == 2
    assert flat_keys({"max_completion_length": 9}) == {"rollout": {"max_completion_length": 9}}, "not eval's"
    with pytest.raises(InputError, match=r"could mean data\.fields\.task or data\.task"):
        flat_keys({"task": "x"})


def test_stored_configuration_builds_the_same_configuration(tmp_path):
    config = build_config(BASE | {"train": {"adam_betas": [0.8, 0.9]}, "data": {"options": {"fields": ["order_id"]}}})
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config, {"threads": 2}))
    stored, measured = read_stored(path)
    assert measured == {"threads": 2}
    assert load_recipe(path) == config
    check_resume(stored, config, tmp_path)


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"train": {"steps": 500}}, True),
        ({"eval": {"prompts": 7}}, True),
        ({"monitoring": {"console": "quiet"}}, True),
        ({"seed": 1}, False),
        ({"train": {"learning_rate": 1e-4}}, False),
        ({"rollout": {"num_generations": 2}}, False),
    ],
)
def test_what_may_change_on_resume(tmp_path, change, allowed):
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(build_config(BASE), {}))
    stored, _ = read_stored(path)
    changed = build_config(merge(BASE, change))
    if allowed:
        check_resume(stored, changed, tmp_path)
    else:
        with pytest.raises(InputError, match="began with"):
            check_resume(stored, changed, tmp_path)


def test_every_key_says_why_one_would_change_it():
    silent = [leaf.key for leaf in leaves(RunConfig) if not leaf.sentence.endswith(".")]
    assert silent == []


def test_functions_are_stored_by_name():
    def my_reward(completions, **kwargs):
        return [0.0] * len(completions)

    config = build_config({"rewards": [my_reward]})
    assert plain(config)["rewards"]["functions"][0]["fn"].endswith("my_reward")


def test_a_key_that_an_older_version_did_not_have_was_at_its_default(tmp_path):
    config = build_config(BASE)
    stored = plain(config)
    del stored["train"]["weight_decay"], stored["sft"]
    check_resume(stored, config, tmp_path)
    changed = build_config(BASE | {"train": {"weight_decay": 0.1}})
    with pytest.raises(InputError, match=r"began with train\.weight_decay=0\.0, now 0\.1"):
        check_resume(stored, changed, tmp_path)
