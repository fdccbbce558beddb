"""A pipeline in made-up surroundings: prompts, a scorer and engines that a test steers."""

import importlib.util
import itertools
import sys
import types
from concurrent.futures import Future
from pathlib import Path

import pytest

from assay.prompts import Curriculum, CurriculumOptions, Refill, RefillOptions, RewardCurriculum
from assay.records import Completion, Finish, Prompt, VersionSpan
from assay.rollouts.options import RolloutOptions
from assay.rollouts.pipeline import Pipeline

PROMPTS = {f"p{i}": Prompt(f"p{i}", (1, i), content_key=f"p{i}") for i in range(12)}
POLICY = types.SimpleNamespace(named_full_weights=lambda: ())


@pytest.fixture(scope="session")
def background():
    """The module of `background.py`."""
    spec = importlib.util.spec_from_file_location("background_engine", Path(__file__).with_name("background.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["background_engine"] = module
    spec.loader.exec_module(module)
    return module


class HandEngine:
    """Gives out futures that the test answers; completions begin with the version at submission."""

    def __init__(self):
        self.version, self.handles, self.open, self.begun, self.limits = 0, itertools.count(), {}, {}, []

    def ask(self, request):
        handle, future = next(self.handles), Future()
        self.begun[request.seed] = self.version
        self.limits.append(request.sampling.max_tokens)
        self.open[handle] = (request, self.version, future)
        return handle, future

    def answer(self, handle):
        request, begun, future = self.open.pop(handle)
        spans = tuple(VersionSpan(start, version) for start, version in enumerate(sorted({begun, self.version})))
        future.set_result(
            [
                Completion([], Finish.STOP, policy_versions=spans, tags={"seed": request.seed, "index": index})
                for index in range(request.n)
            ]
        )

    def push(self, weights, version):
        self.version = version

    def cancel(self, handles):
        for handle in handles:
            self.open.pop(handle)[2].cancel()


class HandScorer:
    """Marks a group when the test says so. `verdict(draw, index)` is the truth."""

    functions, options = (), None

    def __init__(self, verdict):
        self.verdict, self.open = verdict, []

    def reweigh(self, weights): ...

    def submit(self, group, state=None):
        future = Future()
        self.open.append((group, future))
        return future

    def mark(self, position):
        group, future = self.open.pop(position)
        for completion in group.completions:
            completion.correct = self.verdict(group.draw, completion.tags["index"])
            completion.reward = float(completion.correct)
        future.set_result(group)

    def finish(self, groups, state=None):
        return {"verifier/groups": float(len(groups))}


@pytest.fixture(scope="session")
def hand_made():
    """`hand_made(size=, max_staleness=, ...)`: a namespace of pipeline, engine, scorer and curriculum."""

    def make(size=2, max_staleness=1, rounds=100, updates=1, sync=1, n=4, verdict=None, **refill):
        engine = HandEngine()
        scorer = HandScorer(verdict or (lambda draw, index: index == 0))
        options = RolloutOptions(
            engine="vllm-server", num_generations=n, max_staleness=max_staleness, weight_sync_steps=sync
        )
        curriculum = Curriculum(list(PROMPTS.values()), CurriculumOptions(policy="uniform"), num_generations=n, seed=0)
        pipeline = Pipeline(
            engine, scorer, lambda tokens: "", options, seed=7, prompts=PROMPTS,
            refill=Refill(RefillOptions(**refill)), schedules=RewardCurriculum({}, {}),
            groups_per_round=size, updates_per_round=updates, steps=rounds * updates,
        )  # fmt: skip
        scene = types.SimpleNamespace(
            pipeline=pipeline, books=pipeline.books, engine=engine, scorer=scorer, curriculum=curriculum, policy=POLICY
        )
        return scene

    return make
