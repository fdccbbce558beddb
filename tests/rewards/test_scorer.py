"""The calling contract and the scorer: real threads, real processes, real limits."""

import asyncio
import functools
import math
import threading
import time

import numpy as np
import pytest
import torch

from assay.errors import InputError
from assay.records import Judgement, Outcome
from assay.rewards import RewardError, RewardOptions, RewardSpec, Scorer, Verifier, load_reward, reward_table


def score(specs, groups, state=None, **options):
    with Scorer(specs, RewardOptions(**options)) as scorer:
        metrics = scorer.score(groups, state)
    return metrics


# The contract


def test_every_keyword_argument_of_the_contract(make_group):
    seen = {}

    def reward(**kwargs):
        seen.update(kwargs)
        return [0.5] * len(kwargs["completions"])

    group = make_group(["a", "bb"], gold="4", task="sums", level=3)
    score([reward], [group], state={"global_step": 7})
    assert seen["prompts"] == ["What is 2 + 2?"] * 2
    assert seen["completions"] == ["a", "bb"]
    assert seen["completion_ids"] == [[0, 1, 2], [0, 1, 2, 3]]
    assert all(type(token) is int for row in seen["completion_ids"] for token in row)
    assert (seen["gold"], seen["task"], seen["level"]) == (["4"] * 2, ["sums"] * 2, [3, 3])
    assert seen["trainer_state"] == {"global_step": 7}
    assert callable(seen["log_extra"])
    assert callable(seen["log_metric"])
    assert "prompt" not in seen
    assert [c.reward for c in group.completions] == [0.5, 0.5]
    assert group.completions[0].judgements["reward"].outcome is Outcome.SCORED


def test_the_prompt_column_is_not_passed_and_a_clash_is_refused(make_group):
    def reward(completions, **kwargs):
        assert "prompt" not in kwargs
        return [1.0] * len(completions)

    group = make_group(["a"])
    object.__setattr__(group.prompt, "row", {"prompt": "x", "gold": "1"})
    score([reward], [group])
    with pytest.raises(InputError, match="completion_ids"):
        score([reward], [make_group(["a"], completion_ids=[1])])


def test_conversational_completions_arrive_as_messages(make_group):
    messages = [{"role": "assistant", "content": "\\boxed{4}"}]
    seen = []

    def reward(completions, prompts, **_):
        seen.extend(completions)
        return [float(c[0]["content"] == "\\boxed{4}") for c in completions]

    group = make_group([messages], prompt=[{"role": "user", "content": "2+2?"}], gold="4")
    score([reward, "math"], [group])
    assert seen == [messages]
    assert group.completions[0].judgements["math"].outcome is Outcome.CORRECT
    assert group.completions[0].reward == 2.0


def test_functions_without_kwargs_get_what_they_ask_for(make_group):
    def reward(completions, gold):
        return [float(c == g) for c, g in zip(completions, gold)]

    group = make_group(["4", "5"], gold="4")
    score([reward], [group])
    assert [c.reward for c in group.completions] == [1.0, 0.0]


def test_none_means_not_applicable_and_nothing_is_rewarded(make_group):
    group = make_group(["a", "b"])
    score([lambda completions, **_: [None, 1.0], lambda completions, **_: [None, 2.0]], [group])
    first, second = group.completions
    assert first.reward is None
    assert first.correct is None
    assert {j.outcome for j in first.judgements.values()} == {Outcome.NOT_APPLICABLE}
    assert second.reward == 3.0


def test_async_functions_run_at_the_same_time(make_group):
    """Each waits for the other: one after the other they would never end."""
    met = [asyncio.Event, asyncio.Event]
    events = {}

    async def meet(me, other, completions):
        events.setdefault(me, met[0]()).set()
        while other not in events:
            await asyncio.sleep(0)
        await asyncio.wait_for(events[other].wait(), timeout=20)
        return [1.0] * len(completions)

    async def one(completions, **_):
        return await meet("one", "two", completions)

    class Two:
        async def __call__(self, completions, **_):
            return await meet("two", "one", completions)

    group = make_group(["a"])
    score([one, functools.partial(Two())], [group])
    assert group.completions[0].reward == 2.0


def test_sync_functions_of_different_groups_run_at_the_same_time(make_group):
    barrier = threading.Barrier(2, timeout=20)

    def reward(completions, **_):
        barrier.wait()
        return [1.0] * len(completions)

    groups = [make_group(["a"], prompt=p) for p in ("p", "q")]
    score([reward], groups, workers=2)
    assert [g.completions[0].reward for g in groups] == [1.0, 1.0]


def test_a_group_is_marked_while_others_are_still_being_written(make_group):
    with Scorer(["exact_match"]) as scorer:
        first = make_group(["4"], gold="4")
        assert scorer.submit(first).result(timeout=20) is first
        assert first.completions[0].correct is True
        second = make_group(["5"], prompt="other", gold="4")
        scorer.submit(second)
        metrics = scorer.finish([first, second])
    assert second.completions[0].correct is False
    assert metrics["verifier/error_frac"] == 0.0


def test_log_extra_and_log_metric(make_group):
    def reward(completions, log_extra, log_metric, **_):
        log_extra("length", [len(c) for c in completions])
        log_metric("mean_length", sum(map(len, completions)) / len(completions))
        return [0.0] * len(completions)

    groups = [make_group(["a", "a", "a"]), make_group(["aaaaa"], prompt="q")]
    metrics = score([reward], groups)
    assert metrics["mean_length"] == (3 * 1 + 1 * 5) / 4
    assert groups[1].completions[0].tags == {"length": 5, "flags": []}


def test_log_extra_of_the_wrong_length_is_refused(make_group):
    def reward(completions, log_extra, **_):
        log_extra("x", [1])
        return [0.0] * len(completions)

    with pytest.raises(RewardError, match=r"log_extra\('x'\) got 1 values for 2"):
        score([reward], [make_group(["a", "b"])])


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ([1.0], r"'reward' returned 1 rewards for 2 completions"),
        ([1.0, math.nan], r"'reward' returned nan \(float\) at row 1 \(completion 1 of prompt"),
        ([1.0, math.inf], r"returned inf"),
        (["1.0", 1.0], r"returned '1.0' \(str\) at row 0"),
        ("ab", r"returned 'ab' \(str\); return a list"),
        (None, r"returned None"),
        (0.5, r"returned 0.5 \(float\); return a list"),
        ([[1.0], 1.0], r"returned \[1.0\] \(list\) at row 0"),
    ],
)
def test_a_broken_return_names_function_row_and_value_and_the_scorer_lives_on(make_group, returned, told):
    answers = [returned, [1.0, 0.0]]

    def reward(completions, **_):
        return answers[0]

    with Scorer([reward]) as scorer:
        broken = make_group(["a", "b"])
        with pytest.raises(RewardError, match=told):
            scorer.score([broken])
        assert broken.completions[0].judgements == {}
        answers[0] = [1.0, 0.0]
        scorer.score([broken])
        assert [c.reward for c in broken.completions] == [1.0, 0.0]


def test_numpy_scalars_and_booleans_are_numbers(make_group):
    group = make_group(["a", "b", "c"])
    score([lambda completions, **_: [np.float32(0.5), True, np.int64(2)]], [group])
    assert [c.reward for c in group.completions] == [0.5, 1.0, 2.0]


def test_what_a_function_leaves_behind_is_plain(make_group):
    """numpy's values do not load from a checkpoint."""

    def reward(completions, log_extra, **_):
        log_extra("length", np.array([1, 2]))
        log_extra("kind", [np.str_("a"), {"share": torch.tensor(0.5), "names": {"y", 1}}])
        return [Judgement(Outcome.SCORED, np.float64(0.25)), 1.0]

    group = make_group(["a", "b"])
    score([reward], [group])
    first, second = group.completions
    assert [type(item.judgements["reward"].reward) for item in group.completions] == [float, float]
    assert (first.tags["length"], first.tags["kind"]) == (1, "a")
    assert [type(first.tags[name]) for name in ("length", "kind")] == [int, str]
    assert second.tags["kind"] == {"share": 0.5, "names": ["y", 1]}


def test_a_judgement_of_no_number_is_refused(make_group):
    with pytest.raises(RewardError, match=r"returned nan \(float\) at row 0"):
        score([lambda completions, **_: [Judgement(Outcome.SCORED, math.nan)]], [make_group(["a"])])


def test_an_exception_names_the_completion_that_caused_it(make_group):
    def reward(completions, **_):
        return [1 / len(c) for c in completions]

    with pytest.raises(RewardError, match=r"'reward' raised ZeroDivisionError.*completion 1 of prompt"):
        score([reward], [make_group(["a", "", "c"])])


def test_on_error_skip_leaves_out_the_culprit_alone(make_group):
    def reward(completions, **_):
        return [1 / len(c) for c in completions]

    group = make_group(["a", "", "cc"])
    metrics = score([reward], [group], on_error="skip")
    assert [c.reward for c in group.completions] == [1.0, None, 0.5]
    assert group.completions[1].judgements["reward"].outcome is Outcome.ERROR
    assert metrics["verifier/error_frac"] == pytest.approx(1 / 3)


def test_a_failure_is_tried_once_more(make_group):
    calls = []

    def reward(completions, **_):
        calls.append(1)
        if len(calls) == 1:
            raise OSError("once")
        return [1.0] * len(completions)

    group = make_group(["a"])
    score([reward], [group])
    assert group.completions[0].reward == 1.0
    assert len(calls) == 2


def test_two_functions_of_one_name_are_kept_apart(make_group):
    def make(value):
        def reward(completions, **_):
            return [value] * len(completions)

        return reward

    group = make_group(["a"])
    with Scorer([make(1.0), make(2.0), RewardSpec(make(4.0), name="mine", weight=0.5)]) as scorer:
        scorer.score([group])
        assert scorer.names == ["reward", "reward_2", "mine"]
    assert group.completions[0].reward == 5.0


def test_names_unwrap_partials_and_use_the_class_of_instances():
    def plain(completions, scale, **_):
        return [scale] * len(completions)

    class Callable:
        def __call__(self, completions, **_):
            return [0.0] * len(completions)

    assert load_reward(functools.partial(functools.partial(plain), scale=2)).name == "plain"
    assert load_reward(Callable()).name == "Callable"


# Limits


def test_one_endless_completion_does_not_cost_the_others(make_group):
    stop = threading.Event()

    def reward(completions, **_):
        if "slow" in completions:
            stop.wait(60)
        return [1.0] * len(completions)

    group = make_group(["a", "slow", "c"])
    metrics = score([reward], [group], sample_timeout_s=0.3)
    stop.set()
    assert [c.reward for c in group.completions] == [1.0, None, 1.0]
    assert group.completions[1].judgements["reward"].outcome is Outcome.TIMEOUT
    assert metrics["verifier/timeout_frac"] == pytest.approx(1 / 3)


def test_async_functions_have_the_same_limit(make_group):
    async def reward(completions, **_):
        if "slow" in completions:
            await asyncio.sleep(60)
        return [1.0] * len(completions)

    group = make_group(["a", "slow"])
    score([reward], [group], sample_timeout_s=0.3)
    assert [c.reward for c in group.completions] == [1.0, None]


def test_the_round_has_a_limit_of_its_own(make_group):
    stop = threading.Event()

    def reward(completions, **_):
        stop.wait(60)
        return [1.0] * len(completions)

    groups = [make_group(["a"], prompt=str(i)) for i in range(4)]
    started = time.monotonic()
    score([reward], groups, round_timeout_s=0.5, workers=1)
    stop.set()
    assert time.monotonic() - started < 30
    assert {c.judgements["reward"].outcome for g in groups for c in g.completions} == {Outcome.TIMEOUT}


def test_process_isolation_survives_what_threads_cannot(make_group, tmp_path):
    file = tmp_path / "hanging.py"
    file.write_text(
        "def reward(completions, log_metric, log_extra, gold, scale=1.0, **_):\n"
        "    if 'bomb' in completions:\n"
        "        9 ** 9 ** 9\n"
        "    log_metric('seen', len(completions))\n"
        "    log_extra('echo', list(completions))\n"
        "    return [scale * (c == g) for c, g in zip(completions, gold)]\n"
    )
    group = make_group(["4", "bomb", "5"], gold="4")
    spec = RewardSpec(f"{file}:reward", isolation="process", options={"scale": 2.0})
    metrics = score([spec], [group], sample_timeout_s=0.7, workers=1)
    assert [c.reward for c in group.completions] == [2.0, None, 0.0]
    assert group.completions[1].judgements["reward"].outcome is Outcome.TIMEOUT
    assert group.completions[0].tags["echo"] == "4"
    assert metrics["seen"] == 1.0


def test_what_an_isolated_function_returns_is_checked_as_well(make_group, tmp_path):
    (tmp_path / "odd.py").write_text("def reward(completions, **_):\n    return ['x' for _ in completions]\n")
    spec = RewardSpec(f"{tmp_path / 'odd.py'}:reward", isolation="process")
    with pytest.raises(RewardError, match=r"'reward' returned 'x' \(str\) at row 0"):
        score([spec], [make_group(["a"])])


# Loading


def test_where_a_reward_can_come_from(tmp_path, monkeypatch, make_group):
    (tmp_path / "my_rewards.py").write_text(
        "from assay.rewards import Verifier\n"
        "from assay.records import Judgement, Outcome\n"
        "def one(completions, **_):\n    return [1.0] * len(completions)\n"
        "class Mine(Verifier):\n"
        "    def __init__(self, word):\n        self.word = word\n"
        "    def judge(self, text, gold, row):\n"
        "        return Judgement(Outcome.CORRECT if self.word in text else Outcome.WRONG, float(self.word in text))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    group = make_group(["yes", "no"], gold="x")
    specs = [
        f"{tmp_path / 'my_rewards.py'}:one",
        "my_rewards:one",
        RewardSpec("my_rewards:Mine", options={"word": "yes"}),
    ]
    with Scorer(specs) as scorer:
        scorer.score([group])
        assert scorer.names == ["one", "one_2", "Mine"]
    assert [c.reward for c in group.completions] == [3.0, 2.0]
    assert [c.correct for c in group.completions] == [True, False]


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        ("mathh", "did you mean 'math'"),
        ("nowhere.py:f", "does not exist"),
        ("no_such_package.x:f", "cannot import"),
        ("json:nothing", "has no 'nothing'"),
        ("json:__name__", "not something that can be called"),
    ],
)
def test_a_reward_that_does_not_exist(fn, told):
    with pytest.raises(InputError, match=told):
        load_reward(fn)


def test_unknown_options_are_refused_with_those_that_exist():
    with pytest.raises(InputError, match=r"options of 'math'.*gold_column"):
        load_reward(RewardSpec("math", options={"goldd": "x"}))


def test_a_missing_gold_column_names_the_columns_that_are_there(make_group):
    with pytest.raises(InputError, match=r"no column 'gold' \(it has answer\)"):
        score(["math"], [make_group(["\\boxed{4}"], answer="4")])


# Combination


class Fixed(Verifier):
    """A verifier that says what it was told."""

    def __init__(self, outcome, reward, name="fixed"):
        self.outcome, self.reward, self.name = outcome, reward, name

    def judge(self, text, gold, row):
        return Judgement(self.outcome, self.reward)


def marks(make_group, specs, **options):
    group = make_group(["a"], gold="x")
    score(specs, [group], **options)
    return group.completions[0]


def test_weights_and_a_part_that_does_not_apply(make_group):
    right, skipped = Fixed(Outcome.CORRECT, 1.0), Fixed(Outcome.NOT_APPLICABLE, None, "other")
    completion = marks(make_group, [RewardSpec(right, weight=2.0), RewardSpec(skipped, weight=5.0)])
    assert completion.reward == 2.0
    assert completion.correct is True


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.TIMEOUT])
def test_a_part_that_failed_takes_the_completion_out_of_its_group(make_group, outcome):
    broken = Fixed(outcome, None, "broken")
    assert marks(make_group, [broken, lambda completions, **_: [0.1]]).reward is None
    assert marks(make_group, [broken, lambda completions, **_: [0.1]]).correct is None
    unweighted = marks(make_group, [RewardSpec(broken, weight=0.0), lambda completions, **_: [0.1]])
    assert unweighted.reward == 0.1


def test_correct_is_the_primarys_verdict(make_group):
    right, wrong = Fixed(Outcome.CORRECT, 1.0, "right"), Fixed(Outcome.WRONG, 0.0, "wrong")
    assert marks(make_group, [wrong, right]).correct is False
    assert marks(make_group, [wrong, right], primary="right").correct is True
    unparsable = Fixed(Outcome.UNPARSABLE, 0.0, "unparsable")
    assert marks(make_group, [unparsable, right]).correct is False
    skipped = Fixed(Outcome.NOT_APPLICABLE, None, "skipped")
    assert marks(make_group, [skipped, right]).correct is True
    with pytest.raises(InputError, match=r"rewards.primary is 'nobody'"):
        Scorer([right], RewardOptions(primary="nobody"))


def test_correct_without_verdicts_is_the_rewards_threshold(make_group):
    def half(completions, **_):
        return [0.5] * len(completions)

    assert marks(make_group, [half]).correct is False
    assert marks(make_group, [half], correct_threshold=0.5).correct is True
    assert marks(make_group, [half, lambda completions, **_: [0.6]], primary="half").correct is False


def test_a_verdict_about_the_form_yields_to_one_about_the_answer(make_group):
    group = make_group(['{"a": 1}'], gold={"a": 2})
    score([RewardSpec("json_schema", options={"schema": {"type": "object"}}), "json_fields"], [group])
    assert group.completions[0].judgements["json_schema"].outcome is Outcome.CORRECT
    assert group.completions[0].correct is False
    assert group.completions[0].reward == 1.0


def test_rows_of_other_tasks_are_not_marked(make_group):
    groups = [make_group(["\\boxed{4}"], gold="4", task=task) for task in ("math", "mail")]
    score([RewardSpec("math", tasks=("math",))], groups)
    assert [g.completions[0].judgements["math"].outcome for g in groups] == [Outcome.CORRECT, Outcome.NOT_APPLICABLE]


def test_whole_round_functions_see_every_group_once(make_group):
    calls = []

    def rank(completions, **_):
        calls.append(list(completions))
        return [float(sorted(completions).index(c)) for c in completions]

    groups = [make_group(["b", "d"]), make_group(["a", "c"], prompt="q")]
    score([RewardSpec(rank, batch=True, weight=0.5), lambda completions, **_: [1.0] * len(completions)], groups)
    assert calls == [["b", "d", "a", "c"]]
    assert [c.reward for g in groups for c in g.completions] == [1.5, 2.5, 1.0, 2.0]


def test_results_do_not_depend_on_the_number_of_workers(make_group):
    def run(workers):
        groups = [make_group([f"\\boxed{{{i % 3}}}", "x", "\\boxed{1}"], prompt=str(i), gold="1") for i in range(12)]
        metrics = score(["math", "format"], groups, workers=workers)
        kept = {k: v for k, v in metrics.items() if "latency" not in k}
        return kept, [(c.reward, c.correct, list(c.judgements.items())) for g in groups for c in g.completions]

    assert run(1) == run(7)


def test_the_table_that_advantages_start_from(make_group):
    def second(completions, **_):
        return [None, 0.25, 0.5]

    def broken(completions, **_):
        if "c" in completions:
            raise ValueError
        return [1.0] * len(completions)

    group = make_group(["a", "b", "c"])
    with Scorer([second, broken], RewardOptions(on_error="skip")) as scorer:
        scorer.score([group])
        table, ids = reward_table([group, group], scorer.functions)
    nan = math.nan
    np.testing.assert_array_equal(table, [[nan, 1.0], [0.25, 1.0], [nan, nan]] * 2)
    assert ids.tolist() == [0, 0, 0, 1, 1, 1]


def test_what_was_not_the_completions_fault_is_loud(make_group, caplog):
    broken = make_group(["a", "b"], gold="x")
    score([Fixed(Outcome.ERROR, None, "broken")], [broken])
    assert "reward broken: 2 x error" in caplog.text
    caplog.clear()
    score([Fixed(Outcome.NOT_APPLICABLE, None)], [make_group(["a"], gold="x"), make_group(["b"], prompt="q", gold="x")])
    assert "no reward function applies to 2 of 2 groups" in caplog.text
