"""Held-out evaluation: verdicts counted, never invented; the run's start and best remembered exactly."""

import json
import math

import numpy as np
import pytest

from assay.errors import InputError
from assay.evaluation import EvalOptions, Heldout, HeldoutSet, compare, divergence, evaluate
from assay.records import Completion, Finish, Group, Judgement, Outcome, Prompt, Segment
from assay.rollouts.protocol import Sampling

GREEDY = Sampling(max_tokens=8, temperature=0.0)


def prompts(count):
    return [Prompt(content=f"question {index}", token_ids=(index,), row={"gold": str(index)}) for index in range(count)]


def completion(text, finish=Finish.STOP):
    length = max(1, len(text))
    return Completion([Segment(np.arange(length), np.ones(length, bool), np.zeros(length))], finish, text)


def answering(answer):
    """A sampler that writes answer(prompt, draw)."""

    def sample(asked, sampling, n):
        return [Group(prompt, [completion(answer(prompt, draw)) for draw in range(n)]) for prompt in asked]

    return sample


class Marker:
    """Marks against gold; "?" is our failure, "" cannot be parsed."""

    def score(self, groups, trainer_state):
        for group in groups:
            for answer in group.completions:
                if answer.text == "?":
                    answer.judgements["m"] = Judgement(Outcome.ERROR)
                    continue
                answer.correct = answer.text == group.prompt.row["gold"]
                answer.reward = float(answer.correct)
                found = Outcome.CORRECT if answer.correct else Outcome.WRONG if answer.text else Outcome.UNPARSABLE
                answer.judgements["m"] = Judgement(found, answer.reward)


def test_counts_right_wrong_and_unjudged_apart():
    texts = {"0": "0", "1": "no", "2": "?", "3": ""}
    result = evaluate(answering(lambda prompt, draw: texts[prompt.row["gold"]]), Marker(), prompts(4), GREEDY)
    assert result.accuracy == pytest.approx(1 / 3)  # the answer that we failed to judge is not called wrong
    np.testing.assert_array_equal(result.rates, [1.0, 0.0, np.nan, 0.0])
    assert result.metrics["unjudged_frac"] == 0.25
    assert result.metrics["unparsable_frac"] == 0.25
    assert result.metrics["completions/mean_length_correct"] == 1.0
    assert result.metrics["completions/mean_length_wrong"] == 1.5


def test_all_unjudged_has_no_accuracy():
    result = evaluate(answering(lambda *_: "?"), Marker(), prompts(3), GREEDY)
    assert result.accuracy is None
    assert result.interval is None


def test_pass_rate_and_pass_at_k_of_samples():
    sample = answering(lambda prompt, draw: prompt.row["gold"] if draw == 0 else "no")
    result = evaluate(sample, Marker(), prompts(5), Sampling(8), n=4)
    assert result.accuracy == pytest.approx(0.25)
    assert result.metrics["pass@2"] == pytest.approx(1 - math.comb(3, 2) / math.comb(4, 2))
    assert "pass@4" not in result.metrics  # fewer than 2k samples


def test_comparison_pairs_by_prompt_not_by_place():
    first = evaluate(answering(lambda prompt, _: prompt.row["gold"]), Marker(), prompts(6), GREEDY)
    second = evaluate(answering(lambda prompt, _: "0"), Marker(), prompts(8)[::-1], GREEDY)
    change = compare(first, second)
    assert (change.problems, change.better, change.worse) == (6, 0, 5)
    assert change.value == pytest.approx(-5 / 6)


def test_repeated_prompts_stay_apart():
    asked = [prompts(1)[0], prompts(1)[0]]
    assert len(set(evaluate(answering(lambda *_: "0"), Marker(), asked, GREEDY).keys)) == 2


def test_comparison_needs_a_common_prompt():
    first = evaluate(answering(lambda *_: "0"), Marker(), prompts(4)[:2], GREEDY)
    second = evaluate(answering(lambda *_: "0"), Marker(), prompts(4)[2:], GREEDY)
    with pytest.raises(InputError, match="no prompt in common"):
        compare(first, second)


def test_sampler_that_drops_a_group_is_refused():
    with pytest.raises(InputError, match="3 groups of 1"):
        evaluate(lambda asked, sampling, n: [], Marker(), prompts(3), GREEDY)
    with pytest.raises(InputError, match="no prompts"):
        evaluate(answering(lambda *_: "0"), Marker(), [], GREEDY)


class Learner:
    """Answers the first `skill` prompts correctly."""

    def __init__(self):
        self.skill = 0

    def __call__(self, asked, sampling, n):
        return answering(lambda prompt, _: prompt.row["gold"] if int(prompt.row["gold"]) < self.skill else "no")(
            asked, sampling, n
        )


def run(skills, heldout, learner):
    rounds = []
    for step, skill in enumerate(skills, start=0 if heldout.start_step is None else 10):
        learner.skill = skill
        rounds.append(heldout.evaluate(step))
    return rounds


def make(learner, **options):
    sets = [HeldoutSet(prompts(40), Marker()), HeldoutSet(prompts(3), None, name="general")]
    return Heldout(sets, learner, EvalOptions(**options), max_completion_length=8)


def test_best_is_kept_and_ties_stay_with_the_earlier_step():
    learner = Learner()
    heldout = make(learner)
    rounds = run([2, 20, 10, 20, 30], heldout, learner)
    assert [each.is_best for each in rounds] == [True, True, False, False, True]
    assert rounds[3].metrics["heldout/best_step"] == 1
    assert heldout.best_step == 4
    assert heldout.best_figure == 0.75
    metrics = rounds[2].metrics
    assert metrics["heldout/accuracy"] == 0.25
    assert metrics["heldout/accuracy_vs_start"] == pytest.approx(0.2)
    assert metrics["heldout/accuracy_vs_best"] == pytest.approx(-0.25)
    assert metrics["heldout/accuracy_vs_best_low"] < -0.25 < metrics["heldout/accuracy_vs_best_high"] < 0
    assert metrics["heldout/general/completions/mean_length"] == 1
    assert "heldout/general/accuracy" not in metrics


def test_state_survives_json_and_continues_identically():
    learner, twin_learner = Learner(), Learner()
    heldout, twin = make(learner, samples=4), make(twin_learner, samples=4)
    run([2, 20], heldout, learner)
    twin.load_state_dict(json.loads(json.dumps(heldout.state_dict())))
    assert json.dumps(twin.state_dict()) == json.dumps(heldout.state_dict())
    for ours, theirs in zip(run([5, 33], heldout, learner), run([5, 33], twin, twin_learner), strict=True):
        assert ours.metrics == theirs.metrics
        assert ours.is_best == theirs.is_best


def test_due():
    def evaluated(every, round_ends):
        learner = Learner()
        heldout = make(learner, every=every)
        due = []
        for step in round_ends:
            if heldout.due(step, last=step == round_ends[-1]):
                learner.skill = 20
                heldout.evaluate(step)
                due.append(step)
                heldout, kept = make(learner, every=every), heldout.state_dict()
                heldout.load_state_dict(kept)
        return due

    assert evaluated(10, range(24)) == [0, 10, 20, 23]
    assert evaluated(0, range(24)) == [0, 23]
    # Eight updates a round: 10, 20 and 30 lie within rounds and are due where these end; 40 is an end itself.
    assert evaluated(10, range(0, 57, 8)) == [0, 16, 24, 32, 40, 56]


def test_divergence_is_per_token_and_per_completion():
    pairs = [(np.array([-1.0, -2.0]), np.array([-2.0, -2.0])), (np.array([-1.0]), np.array([-0.5]))]
    assert divergence(pairs) == pytest.approx((0.5 / 3, 0.25))


def test_divergence_is_called_kl_only_where_answers_were_sampled():
    def log_probs(groups):
        return [(np.array([-1.0]), np.array([-1.5])) for group in groups for _ in group.completions]

    sets = [HeldoutSet(prompts(4), Marker())]
    greedy = Heldout(sets, Learner(), EvalOptions(), 8, log_probs).evaluate(0).metrics
    sampled = Heldout(sets, Learner(), EvalOptions(samples=2), 8, log_probs).evaluate(0).metrics
    off = Heldout(sets, Learner(), EvalOptions(kl_to_base=False), 8, log_probs).evaluate(0).metrics
    assert greedy["heldout/log_ratio_to_base"] == 0.5
    assert "heldout/kl_to_base" not in greedy
    assert sampled["heldout/kl_to_base"] == 0.5
    assert not any("base" in name for name in off)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"samples": -1}, "eval.samples"),
        ({"temperature": 0.0}, "eval.temperature"),
        ({"top_p": 0.0}, "eval.top_p"),
        ({"best_by": "pass_rate"}, "eval.samples of at least 1"),
    ],
)
def test_options_say_what_is_wrong(options, match):
    with pytest.raises(InputError, match=match):
        EvalOptions(**options)
