"""Preflight rules on evidence made by hand, and the command on a tiny real model."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import betabinom
from typer.testing import CliRunner

from assay.monitoring.preflight import RULES, Evidence, preflight
from assay.monitoring.preflight.plan import memory_parts
from assay.monitoring.preflight.rules_answers import mixed_share
from assay.records import Finish, Judgement, Outcome, Prompt
from assay.rewards.audit import AuditReport

FACTS = {
    "max_completion_length": 64,
    "num_generations": 8,
    "temperature": 1.0,
    "train.steps": 300,
    "steps": 300,
    "prompts_per_step": 4,
    "lora": True,
    "learning_rate": 1e-5,
    "token_budget": 8192,
    "keep_checkpoints": 2,
}


class Letters:
    """A tokenizer of single characters."""

    bos_token_id = 1

    def decode(self, ids):
        return "".join(chr(token) for token in ids)

    def encode(self, text, add_special_tokens=False):
        return [ord(letter) for letter in text]


@pytest.fixture
def evidence(completion, group):
    """Everything in order; tests change one thing."""
    prompts = [Prompt(f"p{i}", tuple(map(ord, f"what {i}?")), {"gold": "1"}, content_key=f"k{i}") for i in range(600)]
    heldout = [Prompt(f"h{i}", (1, 2), content_key=f"h{i}") for i in range(50)]

    def row(index, right):
        return completion(reward=float(right), correct=right, token_ids=[65 + index, 66, 2])

    groups = [group([row(i, i % 2 == 0) for i in range(8)], key=f"k{g}") for g in range(8)]
    logps = [item.segments[0].sampling_logps + 0.001 for found in groups for item in found.completions]
    return Evidence(
        train=prompts,
        heldout=heldout,
        facts=dict(FACTS),
        groups=groups,
        audits=[AuditReport("math", 100, gold_paid=100, tried={"empty": 50}, paid={"empty": 0}, latency_p95=0.001)],
        trainer_logps=logps,
        dry_update={
            "finite": True,
            "grad_norm": 0.3,
            "second_grad_norm": 0.2,
            "changed": True,
            "restored": True,
            "reference_kl": 0.0,
        },
        checkpoint={"same": {"weights": True, "prompts": True}, "bytes": 2**20, "seconds": 0.1},
        endless={"outcome": "timeout", "seconds": 2.1, "limit": 2.0, "isolation": "thread"},
        sync={"arrived": True, "restored": True, "seconds": 0.5},
        tokenizer=Letters(),
        stop_token_ids=frozenset({2}),
        context=2048,
        pool_report=SimpleNamespace(sources=[], overlap=SimpleNamespace(shared_passage=0, examples=())),
        parameters=135_000_000,
        trainable=1_000_000,
        vocabulary=49_152,
        memory_bytes=16 * 2**30,
        footprint={
            "loaded": 2**30,
            "kept_per_token": 2.0**24,
            "kept_anyway": 2.0**20,
            "cache_per_token": 2.0**16,
            "outputs_per_token": 2.0**19,
        },
        free_disk_bytes=10 * 2**30,
        seconds={"generate_per_step": 5.0, "score_per_step": 0.1, "train_per_step": 5.0},
    )


def fired(evidence):
    return {check.id: check for check in preflight(evidence).fired}


def test_a_sound_run_passes(evidence):
    report = preflight(evidence)
    assert fired(evidence) == {}
    assert not report.alarming
    assert [check.id for check in report.checks] == list(RULES)
    assert all(check.evidence for check in report.checks)
    assert report.estimate["hours"] == pytest.approx(10.1 * 300 / 3600)
    assert report.to_json()["ok"]


def test_answers_that_the_verifier_cannot_find_are_named_before_hard_prompts(evidence):
    for found in evidence.groups:
        for item in found.completions:
            item.correct, item.reward = False, 0.0
            item.judgements = {"math": Judgement(Outcome.UNPARSABLE, 0.0, detail="no answer was marked")}
    said = fired(evidence)["PF06"]
    assert "`math` finds no answer in" in said.evidence
    assert "no answer was marked" in said.evidence
    assert "data.system_prompt" in said.key


def change(evidence, rule):
    """Plant the fault that the rule is about."""
    audit = evidence.audits[0]
    rows = [item for found in evidence.groups for item in found.completions]
    if rule == "PF01":
        audit.unreadable = 30
    elif rule == "PF02":
        audit.gold_paid, audit.false_negatives = 50, 50
    elif rule == "PF03":
        evidence.train[0] = Prompt("p", tuple(map(ord, "x<think>\n")))
    elif rule == "PF04":
        audit.paid["empty"] = 3
    elif rule == "PF05":
        for item in rows[: len(rows) // 2]:
            item.finish = Finish.LENGTH
    elif rule == "PF06":
        for item in rows:
            item.correct, item.reward = False, 0.0
    elif rule == "PF07":
        evidence.stop_token_ids = frozenset({3})
    elif rule == "PF09":
        evidence.trainer_logps = [values - 0.2 for values in evidence.trainer_logps]
    elif rule == "PF10":
        evidence.dry_update = {**evidence.dry_update, "grad_norm": 0.0, "changed": False}
    elif rule == "PF11":
        evidence.context = 68
    elif rule == "PF12":
        evidence.facts["temperature"] = 0.3
    elif rule == "PF13":
        evidence.memory_bytes = 2**28
    elif rule == "PF14":
        evidence.sync = {**evidence.sync, "arrived": False}
    elif rule == "PF15":
        evidence.free_disk_bytes = 1000
    elif rule == "PF16":
        evidence.heldout[0] = evidence.train[3]
        evidence.pool_report.overlap.examples = (("What is 1?", "what is 1", "all of it"),)
    elif rule == "PF17":
        audit.latency_p95 = 30.0


@pytest.mark.parametrize("rule", [name for name in RULES if name not in ("PF08", "PF18")])
def test_each_fault_fires_its_own_rule_alone(evidence, rule):
    change(evidence, rule)
    found = fired(evidence)
    assert set(found) == {rule}, found
    assert found[rule].severity in ("error", "warning")
    assert found[rule].fix
    assert found[rule].key
    assert any(character.isdigit() for character in found[rule].evidence + "0" * (rule == "PF03"))


def test_leakage_shows_what_leaked(evidence):
    change(evidence, "PF16")
    assert "held-out 'What is 1?' and training 'what is 1' share 'all of it'" in fired(evidence)["PF16"].evidence


@pytest.mark.parametrize(
    ("rule", "part", "value", "words"),
    [
        ("PF10", "dry_update", {"restored": False}, "same log-probs twice"),
        ("PF10", "dry_update", {"finite": False}, "not finite"),
        ("PF14", "sync", {"hangs": 600.0}, "within 600 s"),
        ("PF15", "checkpoint", {"same": {"weights": True, "prompts": False}}, "other prompts"),
        ("PF17", "endless", {"outcome": "scored"}, "was scored after"),
        ("PF17", "endless", {"seconds": 900.0}, "after 900.0 s"),
    ],
)
def test_each_trial_that_fails_is_named(evidence, rule, part, value, words):
    setattr(evidence, part, {**getattr(evidence, part), **value})
    found = fired(evidence)
    assert set(found) == {rule}
    assert words in found[rule].evidence


def test_token_drift_is_information(evidence):
    evidence.tokenizer.encode = lambda text, add_special_tokens=False: [0]
    assert fired(evidence)["PF08"].severity == "info"
    assert not preflight(evidence).alarming


def test_practitioners_warnings(evidence):
    evidence.train = evidence.train[:100]
    evidence.facts |= {"train.steps": 50, "temperature": 0.8, "learning_rate": 1e-3}
    shown = fired(evidence)["PF18"].evidence
    for word in ("100 prompts", "50 steps", "temperature 0.8", "0.001"):
        assert word in shown


def test_what_is_missing_is_named():
    report = preflight(Evidence([], [], {}))
    assert {check.status for check in report.checks if check.id not in ("PF12", "PF18")} == {"not checkable"}
    assert "audit" in next(check.evidence for check in report.checks if check.id == "PF01")


@pytest.mark.parametrize(("right", "judged", "size"), [(0, 8, 8), (3, 8, 8), (8, 8, 4), (1, 16, 16)])
def test_the_mixed_share_is_that_of_a_beta_binomial(right, judged, size):
    pooled = (right + 0.5) / (judged + 1)
    posterior = betabinom(size, right + pooled, judged - right + 1 - pooled)
    assert mixed_share([(right, judged)], size) == pytest.approx(1 - posterior.pmf(0) - posterior.pmf(size))


def test_truncated_support_is_recognised_by_its_ratio(evidence):
    evidence.trainer_logps = [values + np.log(0.9) for values in evidence.trainer_logps]
    assert "top_p 1" in fired(evidence)["PF09"].fix


@pytest.fixture
def recipe(tmp_path):
    from assay.policy.tiny import save_tiny

    save_tiny(tmp_path / "model")
    rows = [{"question": f"What is {i} plus {i}?", "gold": str(2 * i)} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "recipe.yaml").write_text(
        f"""
name: tiny
output_dir: {tmp_path}/runs
model: {{path: {tmp_path}/model, lora_rank: 2}}
data: {{source: file, path: {tmp_path}/rows.jsonl, heldout_size: 8, fields: {{prompt: question, gold: gold}}}}
rewards: {{functions: [{{fn: math}}]}}
rollout: {{num_generations: 4, max_completion_length: 12}}
train: {{steps: 10, prompts_per_step: 2}}
"""
    )
    return tmp_path / "recipe.yaml"


def test_a_push_that_hangs_is_given_up_and_errors_are_not_swallowed():
    from assay.api.preflight import within

    assert within(0.05, lambda: time.sleep(5)) == {"hangs": 0.05}
    assert within(5, lambda: {"arrived": True}) == {"arrived": True}
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: {"x": 1 / 0})


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_reward_that_never_returns_is_given_up_for_real(isolation, tmp_path):
    from assay.api.preflight import endless_reward
    from assay.rewards.options import RewardOptions, RewardSpec

    (tmp_path / "mine.py").write_text("def mine(completions, **columns):\n    return [0.0] * len(completions)\n")
    spec = RewardSpec(f"{tmp_path}/mine.py:mine", isolation=isolation)
    found = endless_reward(RewardOptions(functions=(spec,)))
    assert (found["outcome"], found["isolation"]) == ("timeout", isolation)
    assert found["limit"] <= found["seconds"] < 60


def test_the_command_on_a_tiny_model(recipe):
    import typer

    from assay.cli.check import check

    application = typer.Typer()
    application.command()(check)
    result = CliRunner().invoke(application, [str(recipe), "--prompts", "4", "--json"])
    assert isinstance(result.exception, SystemExit), result.exception
    found = {item["id"]: item for item in json.loads(result.stdout)["checks"]}
    assert list(found) == list(RULES)
    # A random model solves nothing; everything mechanical must nevertheless be in order.
    assert found["PF06"]["status"] == "fired"
    for rule in ("PF02", "PF04", "PF09", "PF10", "PF14", "PF15", "PF16"):
        assert found[rule]["status"] == "clear", found[rule]
    assert "undone to the last bit" in found["PF10"]["evidence"]
    assert "the same weights, optimizer, prompts, random numbers" in found["PF15"]["evidence"]
    assert "given up after" in found["PF17"]["evidence"]
    assert not list(recipe.parent.glob(".assay-check-*"))
    assert not (recipe.parent / "runs").exists()


def test_memory_is_counted_by_the_larger_phase(evidence):
    """4 prompts x 8 answers of 3 tokens. By hand: training keeps 16 MiB a token and 1 MiB; writing has caches for 64
    tokens an answer and three arrays of 32 x 49,152 floats."""
    prompt = len(evidence.groups[0].prompt.token_ids)
    parts = memory_parts(evidence)
    assert parts["weights, engine and libraries"] == 1.0
    assert parts["optimiser"] == pytest.approx(8e6 / 2**30)
    assert parts["activations and gradients"] == pytest.approx(1.2 * (64 * (prompt + 24) + 1) / 1024)
    assert parts["logits"] == pytest.approx(72 / 1024)
    assert parts["layer outputs for the update"] == 0  # without a limit in the recipe there is none
    evidence.facts["keep_outputs_gib"] = 2.0
    assert memory_parts(evidence)["layer outputs for the update"] == pytest.approx(4 * (prompt + 24) / 2 / 1024)
    evidence.footprint = {**evidence.footprint, "kept_per_token": 0.0}
    parts = memory_parts(evidence)
    assert parts["keys and values"] == pytest.approx(4 * (prompt + 8 * 64) / 16 / 1024)
    assert parts["logits"] == pytest.approx(32 * 49_152 * 4 * 3 / 2**30)
    evidence.facts.update({"prompts_per_step": 64, "optimizer": "adamw_8bit", "kv_cache_gib": 0.5})
    parts = memory_parts(evidence)
    assert parts["optimiser"] == pytest.approx(2e6 / 2**30)
    assert parts["keys and values"] == 0.5
