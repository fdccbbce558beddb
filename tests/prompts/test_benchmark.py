"""The promise of the default policy, on few seeds: at most 0.6 of uniform's generation."""

import importlib.util
from pathlib import Path

import pytest

from assay.prompts import CurriculumOptions

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "curriculum.py"


@pytest.mark.slow
@pytest.mark.parametrize("world", ["prompts learn alone", "prompts help each other"])
def test_the_default_policy_needs_at_most_six_tenths_of_uniform(world):
    spec = importlib.util.spec_from_file_location("curriculum_benchmark", SCRIPT)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    plan = "thompson (default)"
    assert benchmark.PLANS[plan][0] == CurriculumOptions().policy
    found = benchmark.measure(benchmark.WORLDS[world], ["uniform", plan], seeds=3, size=1000, batch=32)
    assert found[plan]["ratio"] <= 0.6
    assert found[plan]["mixed"] > 1.4 * found["uniform"]["mixed"]
