"""TRL's own advantages and reward metrics on given rewards: a real trainer of a tiny model, its rewards replaced."""

import pytest
import torch

from assay.objectives import TokenInputs, compute_advantages, preset

pytest.importorskip("trl", reason="the extra `parity` installs TRL")

GROUPS, GENERATIONS = 3, 4
N = GROUPS * GENERATIONS


def first(completions, **_):
    return [0.0] * len(completions)


def second(completions, **_):
    return [0.0] * len(completions)


def tiny_trainer(kind, folder, tmp_path, **fields):
    import trl
    from datasets import Dataset

    config, trainer = getattr(trl, f"{kind}Config"), getattr(trl, f"{kind}Trainer")
    return trainer(
        model=str(folder),
        reward_funcs=[first, second],
        args=config(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], num_generations=GENERATIONS,
            per_device_train_batch_size=N, max_completion_length=3, gradient_checkpointing=False, **fields,
        ),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * N),
    )  # fmt: skip


def theirs(trainer, rewards, weights):
    trainer._calculate_rewards = lambda *_: rewards.clone()
    trainer.reward_weights = torch.tensor(weights)
    trainer.model.train()
    trainer._metrics["train"].clear()
    output = trainer._generate_and_score_completions([{"prompt": "a"}] * N)
    return output, {name: values[-1] for name, values in trainer._metrics["train"].items()}


def random_rewards(seed):
    """Two functions, some Nones: a partial row, an unscorable one, and a group where all rewards are equal."""
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 3, (N, 2), generator=g).float() / 2
    rewards[8:] = torch.tensor([1.0, 0.5])
    rewards[1, 0] = torch.nan
    rewards[5] = torch.nan
    return rewards


@pytest.fixture(scope="module")
def grpo(tiny_folder, tmp_path_factory):
    return tiny_trainer("GRPO", tiny_folder("llama"), tmp_path_factory.mktemp("trl"))


@pytest.mark.parametrize("weights", [[1.0, 1.0], [1.0, 2.0]], ids=["equal", "weighted"])
@pytest.mark.parametrize(
    ("scale", "aggregation"),
    [
        ("group", "sum_then_normalize"),
        ("batch", "sum_then_normalize"),
        ("none", "sum_then_normalize"),
        ("group", "normalize_then_sum"),
    ],
)
def test_grpo_advantages(grpo, scale, aggregation, weights):
    grpo.scale_rewards, grpo.multi_objective_aggregation = scale, aggregation
    spec = preset("grpo", dialect="trl", scale_rewards=scale, multi_objective_aggregation=aggregation)
    for seed in range(5):
        rewards = random_rewards(seed)
        output, metrics = theirs(grpo, rewards, weights)
        ours = compute_advantages(rewards, torch.arange(N) // GENERATIONS, weights, spec)
        torch.testing.assert_close(ours.advantages.float(), output["advantages"], atol=2e-6, rtol=1e-5)
        values = ours.metrics.values()
        assert values["reward"] == pytest.approx(metrics["reward"], abs=1e-6)
        assert values["reward_std"] == pytest.approx(metrics["reward_std"], abs=1e-6)
        if scale != "batch" and aggregation == "sum_then_normalize":  # elsewhere TRL's number is that of the batch
            assert values["frac_reward_zero_std"] == pytest.approx(metrics["frac_reward_zero_std"], abs=1e-6)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_rloo_advantages(tiny_folder, tmp_path, beta, normalize):
    trainer = tiny_trainer("RLOO", tiny_folder("llama"), tmp_path, beta=beta, normalize_advantages=normalize)
    if beta:
        with torch.no_grad():
            for parameter in trainer.ref_model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    seen = {}
    score = trainer._get_per_token_logps_and_entropies

    def recorded(model, *args, **kwargs):
        result = score(model, *args, **kwargs)
        seen["ref" if model is trainer.ref_model else "old"] = result[0]
        return result

    trainer._get_per_token_logps_and_entropies = recorded
    spec = preset("rloo", dialect="trl", beta=beta, normalize_advantages=normalize)
    rewards = random_rewards(0)
    output, metrics = theirs(trainer, rewards, [1.0, 1.0])
    tokens = TokenInputs(output["completion_mask"].bool(), seen["old"], seen.get("ref"))
    ours = compute_advantages(rewards, torch.arange(N) // GENERATIONS, None, spec, tokens=tokens)
    torch.testing.assert_close(ours.advantages.float(), output["advantages"], atol=2e-6, rtol=1e-5)
    if beta:
        assert ours.metrics.values()["kl"] == pytest.approx(metrics["kl"], abs=1e-6)
        assert not ours.no_signal[8:].any(), "with KL in the reward, equal rewards still teach"
        assert ours.uniform[8:].all()
