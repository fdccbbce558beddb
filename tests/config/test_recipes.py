"""Every recipe of the repository is a valid run whose reward functions exist."""

from pathlib import Path

import pytest

from assay.config.load import load_recipe
from assay.rewards import load_rewards

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


def test_there_are_recipes():
    assert "quickstart" in {path.stem for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_valid(path):
    config = load_recipe(path)
    names = [function.name for function in load_rewards(config.rewards.functions)]
    assert names
    assert not config.rewards.primary or config.rewards.primary in names
