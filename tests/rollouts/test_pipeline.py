"""Asynchronous rollouts in steered surroundings: the bound, the accounts and the memory, whatever finishes when."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import RunError
from assay.prompts import reward_curriculum
from assay.rollouts.admission import Stage


def start(scene, step=0):
    """What the trainer does before its first `collect`, without waiting."""
    scene.pipeline.push(scene.policy, step)
    with scene.pipeline.changed:
        scene.pipeline.begin(scene.curriculum, step, None)


def finish_one(scene, pick):
    """Answer or mark one of the things in flight; False where there is none."""
    choices = [(scene.engine.answer, handle) for handle in scene.engine.open]
    choices += [(scene.scorer.mark, position) for position in range(len(scene.scorer.open))]
    if not choices:
        return False
    act, argument = choices[pick % len(choices)]
    act(argument)
    return True


def finish_all(scene):
    while finish_one(scene, 0):
        pass


def train_one(scene, step, updates, size):
    groups = scene.pipeline.collect(scene.curriculum, size, step).groups
    scene.pipeline.push(scene.policy, step + updates)
    return groups


@given(
    size=st.integers(1, 4), staleness=st.integers(1, 3), updates=st.integers(1, 3), sync=st.integers(1, 3),
    dynamic=st.booleans(), screen=st.sampled_from([0, 2]), picks=st.lists(st.integers(0, 1000), max_size=150),
    fallback=st.sampled_from(["short", "pad"]), hopeless=st.integers(0, 4),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_bound_and_accounts_for_any_order_of_finishing(
    hand_made, size, staleness, updates, sync, dynamic, screen, picks, fallback, hopeless
):
    rounds = 12
    verdict = lambda draw, index: index == 0 and draw % 5 >= hopeless  # noqa: E731
    scene = hand_made(
        size, staleness, rounds, updates, min(sync, staleness + 1), verdict=verdict,
        dynamic_sampling=dynamic, screen=screen, fallback=fallback, max_rounds=2, max_oversample=1.0,
    )  # fmt: skip
    start(scene)
    step, trained = 0, []
    for pick in [*picks, *[0] * 2000]:
        books = scene.books
        books.check()
        assert len(books.queue) <= (staleness + 1) * size
        if (books.is_ready() or books.is_exhausted()) and (pick % 3 == 0 or not books.in_flight()):
            groups = train_one(scene, step, updates, size)
            for group in groups:
                assert len(group.completions) in (4, screen)
                for item in group.completions:
                    begun = scene.engine.begun[item.tags["seed"]]
                    assert begun == item.policy_versions[0].version
                    assert step - begun <= staleness * updates
            trained += [group.draw for group in groups]
            step += updates
            if books.round == rounds:
                break
        else:
            assert finish_one(scene, pick), "nothing is in flight and the next round is not ready: a deadlock"
    assert scene.books.round == rounds
    assert len(set(trained)) == len(trained)
    if not dynamic:
        assert trained == list(range(rounds * size))
    assert scene.books.trained == len(trained)
    assert scene.curriculum.table(), "the curriculum has seen groups"


@given(
    picks=st.lists(st.integers(0, 1000), min_size=5, max_size=60),
    cut=st.integers(0, 60),
    screen=st.sampled_from([0, 2]),
)
@settings(max_examples=60, deadline=None)
def test_a_checkpoint_at_any_moment_loses_no_admitted_group(hand_made, tmp_path_factory, picks, cut, screen):
    """Saved to a file, loaded into new objects: the same draws, seeds and rewards go on to be trained."""
    keys = {"size": 2, "max_staleness": 2, "rounds": 6, "dynamic_sampling": False, "screen": screen}
    verdict = lambda draw, index: index == 0 and draw % 2 == 0  # noqa: E731
    scene = hand_made(verdict=verdict, **keys)
    start(scene)
    step, trained = 0, []
    for number, pick in enumerate(picks):
        if number == cut:
            break
        if scene.books.is_ready() and pick % 2:
            trained += train_one(scene, step, 1, 2)
            step += 1
        else:
            finish_one(scene, pick)
        if scene.books.round == 6:
            break
    with scene.pipeline.frozen():
        state = {"pipeline": scene.pipeline.state_dict(), "curriculum": scene.curriculum.state_dict()}
    path = tmp_path_factory.mktemp("state") / "state.pt"
    torch.save(state, path)
    whole = {entry.group.draw for entry in scene.books.queue}
    waiting = {entry.group.draw for entry in scene.books.queue if entry.stage is Stage.WAITING}
    written = {entry.group.draw for entry in scene.books.queue if entry.written}

    again = hand_made(verdict=verdict, **keys)
    state = torch.load(path, weights_only=True)
    again.pipeline.load_state_dict(state["pipeline"])
    again.curriculum.load_state_dict(state["curriculum"])
    if again.books.round < 6:
        start(again, step)
    for entry in again.books.queue:
        if entry.group.draw in whole:
            expected = Stage.WAITING if entry.group.draw in waiting else Stage.MARKING
            assert entry.stage is (expected if entry.group.draw in waiting | written else Stage.WRITING)
    while again.books.round < 6:
        if again.books.is_ready():
            trained += train_one(again, step, 1, 2)
            step += 1
        else:
            assert finish_one(again, 0)
    assert [group.draw for group in trained] == list(range(12))
    seeds = {group.draw: [item.tags["seed"] for item in group.completions] for group in trained}

    never_cut = hand_made(verdict=verdict, **keys)
    start(never_cut)
    for done in range(6):
        finish_all(never_cut)
        for group in train_one(never_cut, done, 1, 2):
            assert [item.tags["seed"] for item in group.completions] == seeds[group.draw]
            assert [item.reward for item in group.completions] == [item.reward for item in
                                                                   trained[group.draw].completions]  # fmt: skip


def test_admission_by_hand(hand_made):
    """2 groups a round, staleness 1: round 0 and 1 at once; round 2 only when the weights of round 1 are there."""
    scene = hand_made(size=2, max_staleness=1)
    start(scene)
    assert [entry.group.draw for entry in scene.books.queue] == [0, 1, 2, 3]
    finish_all(scene)
    assert scene.books.admitted == 4
    found = scene.pipeline.collect(scene.curriculum, 2, 0)
    assert [group.draw for group in found.groups] == [0, 1]
    assert scene.books.admitted == 4, "round 2 would be two rounds old"
    assert found.metrics["pipeline/waiting"] == 2
    assert found.metrics["verifier/groups"] == 4
    scene.pipeline.push(scene.policy, 1)
    assert [entry.group.draw for entry in scene.books.queue] == [2, 3, 4, 5]


def test_a_dropped_group_makes_room_at_once(hand_made):
    scene = hand_made(size=2, max_staleness=1, verdict=lambda draw, i: i == 0 and draw != 1, dynamic_sampling=True)
    start(scene)
    finish_all(scene)
    assert [entry.group.draw for entry in scene.books.queue] == [0, 2, 3, 4]
    found = scene.pipeline.collect(scene.curriculum, 2, 0)
    assert [group.draw for group in found.groups] == [0, 2]
    assert (found.metrics["refill/generated"], found.metrics["refill/all_wrong"]) == (5, 1)
    assert found.metrics["pipeline/dropped"] == 1


def test_what_was_written_since_the_last_round_survives_a_checkpoint(hand_made):
    keys = {"size": 2, "max_staleness": 1, "verdict": lambda draw, i: i == 0 and draw != 1, "dynamic_sampling": True}
    scene = hand_made(**keys)
    start(scene)
    finish_all(scene)
    with scene.pipeline.frozen():
        state = {"pipeline": scene.pipeline.state_dict(), "curriculum": scene.curriculum.state_dict()}
    again = hand_made(**keys)
    again.pipeline.load_state_dict(state["pipeline"])
    again.curriculum.load_state_dict(state["curriculum"])
    start(again)
    finish_all(again)
    whole, resumed = (one.pipeline.collect(one.curriculum, 2, 0) for one in (scene, again))
    assert [group.draw for group in whole.written] == [group.draw for group in resumed.written] == [0, 1, 2, 3, 4]
    assert len(whole.written) == whole.metrics["refill/generated"] == resumed.metrics["refill/generated"]


def test_weights_are_pushed_every_other_round(hand_made):
    scene = hand_made(size=1, max_staleness=1, sync=2)
    start(scene)
    versions = []
    for step in range(5):
        finish_all(scene)
        train_one(scene, step, 1, 1)
        versions.append(scene.engine.version)
    assert versions == [0, 2, 2, 4, 4]
    scene.pipeline.push(scene.policy, 5, needed=True)
    assert scene.engine.version == 5


@pytest.mark.parametrize(("fallback", "trained"), [("short", 2), ("pad", 2)])
def test_a_pool_without_signal_ends_after_the_stated_number_of_groups(hand_made, fallback, trained):
    scene = hand_made(
        size=2,
        verdict=lambda draw, i: False,
        dynamic_sampling=True,
        max_rounds=3,
        max_oversample=2.0,
        fallback=fallback,
    )
    start(scene)
    finish_all(scene)
    found = scene.pipeline.collect(scene.curriculum, 2, 0)
    assert len(found.groups) == trained
    assert 12 <= found.metrics["refill/generated"] <= 12 + 4
    assert found.metrics["refill/missing"] == 2
    scene.books.check()


def test_stop_ends_the_run_with_the_keys_to_change(hand_made):
    scene = hand_made(size=2, verdict=lambda draw, i: False, dynamic_sampling=True, max_rounds=1, max_oversample=1.0,
                      fallback="stop")  # fmt: skip
    start(scene)
    finish_all(scene)
    with pytest.raises(RunError, match=r"0 of 2 groups with a signal .*refill\.max_rounds"):
        scene.pipeline.collect(scene.curriculum, 2, 0)


def test_an_engine_that_did_not_take_the_weights_is_noticed(hand_made):
    scene = hand_made(size=1, max_staleness=1)
    start(scene)
    scene.engine.push = lambda weights, version: None
    for step in range(2):
        finish_all(scene)
        train_one(scene, step, 1, 1)
    finish_all(scene)
    with pytest.raises(RunError, match="begun by policy version 0 and is to be trained at step 2"):
        scene.pipeline.collect(scene.curriculum, 1, 2)


def test_a_scheduled_length_is_that_of_the_round_that_trains_the_group(hand_made):
    """10 tokens at step 0, one more each step; two updates a round, so groups of round r get 10 + 2r."""
    scene = hand_made(size=1, max_staleness=2, rounds=10, updates=2)
    scene.pipeline.schedules = reward_curriculum(
        {}, {"max_completion_length": {"start": 10, "end": 110, "to_step": 100}}, []
    )
    start(scene)
    for step in (0, 2, 4):
        finish_all(scene)
        train_one(scene, step, 2, 1)
    assert scene.engine.limits == [10, 12, 14, 16, 18, 20]
