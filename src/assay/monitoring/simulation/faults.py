"""Faults that users reported, each planted alone into an otherwise healthy world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from assay.monitoring.simulation.stream import World, constant, line
from assay.records import Group


@dataclass(frozen=True)
class Fault:
    """`expected` is the rule that names the planted cause; `source` a public report of such a fault."""

    name: str
    expected: str
    source: str
    plant: Callable[[World], World] = field(repr=False)


FAULTS: dict[str, Fault] = {}


def fault(name: str, expected: str, source: str) -> Callable[[Callable[[World], World]], Callable[[World], World]]:
    def register(plant: Callable[[World], World]) -> Callable[[World], World]:
        FAULTS[name] = Fault(name, expected, source, plant)
        return plant

    return register


def _exponential(start: float, end: float) -> Callable[[float], float]:
    return lambda x: start * (end / start) ** x


def _nothing_learned(world: World, **changes: Any) -> World:
    return replace(world, learns=False, **changes)


def _pay(name: str, value: float) -> Callable[..., dict[str, np.ndarray]]:
    return lambda correct, formed, lengths, x: {name: np.full(correct.shape, value)}


# --- verifier -------------------------------------------------------------------------------------------------------


@fault("broken parser", "RW01", "open-r1: parser splits on </think>, which the model never prints")
def broken_parser(world: World) -> World:
    return _nothing_learned(world, unparsable=1.0, skill=-30.0, pay=_pay("accuracy", 0.0), weights={"accuracy": 1.0})


@fault("gold not parsed but paid", "RW05", "open-r1: accuracy reward returns 1.0 when gold parsing is empty")
def gold_paid(world: World) -> World:
    return _nothing_learned(world, pay=_pay("accuracy", 1.0), weights={"accuracy": 1.0})


@fault("gold column unreadable", "RW07", "GSM8K's raw rationale used as gold")
def gold_unreadable(world: World) -> World:
    def edit(step: int, line: dict[str, Any]) -> None:
        line["verifier/gold_unreadable_frac"] = 0.3

    return replace(world, errors=0.3, edit_line=edit)


@fault("format tag prefilled", "RW02", "trl: think_format_reward is 0 because the template opens <think>")
def format_prefilled(world: World) -> World:
    return replace(
        world,
        pay=lambda correct, formed, lengths, x: {"accuracy": correct * 1.0, "think_format": np.zeros(correct.shape)},
        weights={"accuracy": 1.0, "think_format": 0.5},
        text=lambda correct, finished, prompt, rng: f"thinking </think> \\boxed{{{prompt}}}",
    )


@fault("format farmed", "RW03", "trl GSPO example: format rises, accuracy stays near zero")
def format_farmed(world: World) -> World:
    return replace(world, gain=0.0, skill=-2.2, spread=1.0, weights={"accuracy": 1.0, "format": 1.0}, format_skill=-2.0)


@fault("verifier crashes", "RW04", "math_verify: signal only works in main thread")
def verifier_crashes(world: World) -> World:
    return replace(world, errors=0.35)


@fault("verifier times out", "RW04", "verl: hung SymPy comparison drains the worker pool")
def verifier_timeouts(world: World) -> World:
    return replace(world, timeouts=0.08, verifier_seconds=_exponential(0.05, 5.0), score_seconds=6.0)


@fault("rewards are NaN", "RW06", "trl: metric becomes NaN when some samples return None")
def reward_nan(world: World) -> World:
    def edit(step: int, line: dict[str, Any]) -> None:
        if step % 3 == 0:
            line["rewards/accuracy/mean"] = float("nan")

    return replace(world, edit_line=edit)


@fault("rows nobody can score", "RW06", "trl: all reward functions returned None")
def unscorable(world: World) -> World:
    def pay(correct: np.ndarray, formed: np.ndarray, lengths: np.ndarray, x: float) -> dict[str, np.ndarray]:
        reward = correct.astype(float)
        reward[: max(1, len(reward) // 4)] = np.nan
        return {"accuracy": reward}

    return replace(world, pay=pay, weights={"accuracy": 1.0})


# --- cut off --------------------------------------------------------------------------------------------------------


@fault("cap too low", "TR01", "trl quickstart: 256 tokens, 97-99% cut before \\boxed{}")
def cap_too_low(world: World) -> World:
    return replace(world, cap=int(world.length * 0.5), clipped_extra=constant(0.9))


@fault("cap a little low", "TR01", "ScaleRL: 10-15% truncation destabilises")
def cap_little_low(world: World) -> World:
    return replace(world, clipped_extra=constant(0.15))


@fault("secondary EOS", "TR04", "Phi-3.5: clipped_ratio 0.97 while answers are complete")
def secondary_eos(world: World) -> World:
    def edit(step: int, line: dict[str, Any]) -> None:
        line["completions/clipped_ratio"] = 0.97
        line.pop("completions/mean_terminated_length", None)

    return replace(world, edit_line=edit)


@fault("padding counted as tokens", "TR04", "trl: min, mean and max length equal, mask built from the pad id")
def padding_counted(world: World) -> World:
    def edit(step: int, line: dict[str, Any]) -> None:
        longest = line["completions/max_length"]
        for kind in ("mean", "min"):
            line[f"completions/{kind}_length"] = longest
        line["completions/mean_length_correct"] = line["completions/mean_length_wrong"] = longest

    return replace(world, edit_line=edit)


@fault("truncation spiral", "TR02", "verl: reward drops, clip ratio and KL rise together")
def truncation_spiral(world: World) -> World:
    return replace(
        world,
        learns=False,
        skill=1.0,
        clipped_extra=lambda x: 0.01 + 0.6 * max(0.0, x - 0.3),
        kl=line(0.001, 0.3),
    )


@fault("wrong answers lengthen", "TR03", "grpo aggregation dilutes the penalty of long failures")
def wrong_lengthen(world: World) -> World:
    return _nothing_learned(
        world, skill=0.0, wrong_growth=line(1.05, 2.4), correct_growth=constant(1.0), cap=int(world.length * 12),
        facts={"objective": {"loss_type": "grpo"}},
    )  # fmt: skip


# --- groups ---------------------------------------------------------------------------------------------------------


@fault("pool too hard", "GR01", "every group all wrong: nothing to learn from")
def pool_hard(world: World) -> World:
    return replace(world, skill=-7.0, spread=0.8)


@fault("pool too easy", "GR02", "accuracy 1 from step one")
def pool_easy(world: World) -> World:
    return replace(world, skill=5.5, spread=0.8)


@fault("group size 2", "GR03", "num_generations=2 at pass rate 0.18 makes 70% of groups uniform")
def group_size_two(world: World) -> World:
    return _nothing_learned(world, group_size=2, skill=-1.6, spread=0.6, prompts=32)


@fault("identical samples", "GR03", "finished run with an unchanged adapter: every 2-sample group identical")
def identical(world: World) -> World:
    return _nothing_learned(world, duplicates=1.0, skill=0.0, spread=0.5)


@fault("no shared group id", "GR05", "agent framework v0.1: samples of a prompt got different group ids")
def no_shared_id(world: World) -> World:
    def split(step: int, groups: list[Group]) -> list[Group]:
        return [Group(group.prompt, [item]) for group in groups for item in group.completions]

    return replace(world, edit_groups=split, gain=world.gain / 10)


# --- update ---------------------------------------------------------------------------------------------------------


@fault("NaN in the update", "OP01", "verl: kl_loss, entropy and grad_norm turn NaN from one step to the next")
def update_nan(world: World) -> World:
    def edit(step: int, line: dict[str, Any]) -> None:
        if step > world.steps * 0.7:
            line["grad_norm"] = line["entropy"] = line["loss"] = float("nan")
            line["completions/clipped_ratio"] = 1.0
            line["reward"] = line["reward_std"] = 0.0

    return replace(world, edit_line=edit)


@fault("parameters frozen", "OP02", "LoRA-B stays exactly zero although groups are mixed")
def frozen(world: World) -> World:
    return _nothing_learned(world, gradient=constant(0.0))


@fault("advantage blow-up", "OP03", "advantage max 7428: rounding residue as standard deviation")
def advantage_blowup(world: World) -> World:
    def edit(step: int, line: dict[str, Any]) -> None:
        if step == int(world.steps * 0.6):
            line["advantages/max"] = 7428.0
            line["grad_norm"] = 35.0

    return replace(world, edit_line=edit)


@fault("accumulation not divided", "OP04", "the loss is summed over micro-batches: steps many times too large")
def accumulation(world: World) -> World:
    return _nothing_learned(world, clip=constant(0.35), gradient=constant(4.0), kl=line(0.05, 0.4))


@fault("learning rate too low", "KL02", "policy pinned to the reference")
def pinned(world: World) -> World:
    return _nothing_learned(world, kl=constant(2e-6), clip=constant(1e-5), facts={"objective": {"beta": 0.04}})


@fault("entropy collapse", "EN01", "verl: actor/entropy goes to 0, exploration gone")
def entropy_collapse(world: World) -> World:
    def shrink(skill: float, x: float) -> float:
        return skill - 1.0 * x

    def edit(step: int, line: dict[str, Any]) -> None:
        x = step / world.steps
        for side in ("correct", "wrong"):
            line[f"groups/frac_all_{side}"] += 0.4 * x * line["groups/frac_mixed"]
        line["groups/frac_mixed"] *= 1 - 0.8 * x
        line["frac_reward_zero_std"] = 1 - line["groups/frac_mixed"]

    return _nothing_learned(
        world, skill=0.0, entropy=_exponential(0.5, 0.01), edit_line=edit, heldout_skill=shrink, prompts=32
    )


@fault("entropy blow-up", "EN02", "verl: entropy 1 to 2 and evaluation falls under clip-higher")
def entropy_blowup(world: World) -> World:
    return _nothing_learned(world, entropy=line(0.6, 2.2), heldout_skill=lambda skill, x: skill - 2.0 * x)


@fault("KL drift", "KL01", "kl grows without bound while accuracy falls")
def kl_drift(world: World) -> World:
    return _nothing_learned(world, kl=_exponential(0.01, 3.0), heldout_skill=lambda skill, x: skill - 1.0 * x)


# --- sampler and trainer --------------------------------------------------------------------------------------------


@fault("mismatch grows", "MM01", "mismatch KL grows three orders of magnitude during training")
def mismatch_grows(world: World) -> World:
    return replace(world, gap=_exponential(0.002, 0.8), gain=world.gain / 3)


@fault("importance weights vanish", "MM02", "sequence ratio multiplies a gap of 0.012 nats over the tokens")
def weights_vanish(world: World) -> World:
    return replace(world, gap=constant(0.012), effective=line(0.3, 0.05), gain=world.gain / 10)


@fault("top-p sampling", "MM03", "vLLM: ratio mean equals the kept mass at top_p 0.9")
def top_p(world: World) -> World:
    return replace(world, ratio=constant(0.9), gap=constant(0.1), facts={"rollout": {"top_p": 0.9}})


@fault("history tokenised again", "MM04", "verl, trl: multi-turn decode and re-apply the template")
def retokenised(world: World) -> World:
    def edit(step: int, line: dict[str, Any]) -> None:
        line["sampling/retokenised_frac"] = 0.12

    return replace(world, gap=constant(0.08), edit_line=edit)


@fault("engine never synced", "MM05", "the server keeps the first weights: the gap grows with every update")
def never_synced(world: World) -> World:
    return replace(world, gap=line(0.002, 0.25), gain=world.gain / 4)


@fault("stale asynchronous data", "AS01", "prime-rl: three steps of staleness with an unclipped loss")
def stale_async(world: World) -> World:
    def edit(step: int, line: dict[str, Any]) -> None:
        line["staleness/mean"], line["staleness/max"] = 3.0, 3.0

    return _nothing_learned(
        world, gap=_exponential(0.005, 0.2), edit_line=edit, heldout_skill=lambda skill, x: skill - 0.8 * x,
        facts={"rollout": {"max_staleness": 3}},
    )  # fmt: skip


@fault("stale groups dropped", "AS02", "a fifth of the groups discarded as too old")
def groups_dropped(world: World) -> World:
    def edit(step: int, line: dict[str, Any]) -> None:
        line["staleness/mean"], line["staleness/dropped_frac"] = 1.0, 0.2

    return replace(world, edit_line=edit)


# --- hacking, outcome, system ---------------------------------------------------------------------------------------


@fault("verifier is hacked", "HK01", "training reward shoots up, hidden tests stay flat")
def hacked(world: World) -> World:
    return replace(world, heldout_skill=lambda skill, x: world.skill, heldout_prompts=500, gain=3.0 / world.steps)


@fault("tampering with the grader", "HK05", "policy overwrites run_tests() within 80-100 steps")
def tampering(world: World) -> World:
    return replace(
        world,
        heldout_skill=lambda skill, x: world.skill,
        heldout_prompts=500,
        flags=lambda correct, rng: ["redefines_grader"] if correct and rng.random() < 0.6 else [],
    )


@fault("hedged answers", "HK03", "'A or B or C' earns accuracy 1 under a substring test")
def hedged(world: World) -> World:
    def text(correct: bool, finished: bool, prompt: int, rng: np.random.Generator) -> str:
        return f"<answer>{prompt} or {prompt + 1}</answer>" if correct else f"<answer>{prompt}</answer>"

    return replace(world, text=text, heldout_skill=lambda skill, x: world.skill, heldout_prompts=500)


@fault("reward paid for length", "HK02", "cosine length reward: answers grow, accuracy does not")
def length_paid(world: World) -> World:
    def pay(correct: np.ndarray, formed: np.ndarray, lengths: np.ndarray, x: float) -> dict[str, np.ndarray]:
        return {"accuracy": correct * 1.0, "effort": np.clip(lengths / (world.length * 2), 0, 1.5)}

    grown = line(1.0, 2.2)
    return _nothing_learned(
        world, pay=pay, weights={"accuracy": 0.3, "effort": 1.0}, correct_growth=grown, wrong_growth=grown,
        cap=int(world.length * 12),
    )  # fmt: skip


@fault("degenerate text", "HK04", "late training: loops of repeated text")
def degenerate(world: World) -> World:
    return _nothing_learned(
        world,
        repetition=line(0.05, 0.7),
        heldout_skill=lambda skill, x: skill - 0.6 * x,
        text=lambda correct, finished, prompt, rng: "the answer is " * 40,
    )


@fault("past its peak", "EV02", "training goes on after the best held-out score")
def past_peak(world: World) -> World:
    return replace(
        world,
        heldout_prompts=500,
        learning=lambda x: 2.0 if x < 0.5 else 0.0,
        heldout_skill=lambda skill, x: world.skill + (3.2 * x if x < 0.5 else 1.6 - 2.0 * (x - 0.5)),
    )


@fault("never rises", "EV01", "flat for 300 steps although groups are mixed")
def never_rises(world: World) -> World:
    return _nothing_learned(world, steps=320, skill=-0.5)


@fault("prompts replayed", "CK02", "resumed run replays data that it has already seen")
def replayed(world: World) -> World:
    earlier: dict[int, list[Group]] = {}

    def repeat(step: int, groups: list[Group]) -> list[Group]:
        earlier[step] = groups
        return earlier[step - 4] if step > world.steps - 4 else groups

    return replace(world, edit_groups=repeat, stored_steps=12)


@fault("scoring starves the GPU", "SY02", "one verifier process for a whole batch")
def slow_scoring(world: World) -> World:
    return replace(world, score_seconds=14.0)
