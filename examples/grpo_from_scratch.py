"""GRPO and its successors, from scratch and for real, on one set of formulas: `assay.objectives`.

    python examples/grpo_from_scratch.py --smoke
    python examples/grpo_from_scratch.py --full --model Qwen/Qwen3-1.7B --loss-type dr_grpo --scale-rewards none

--smoke trains a table of logits to add two digits, in seconds, under four objectives, and checks that a group whose
rewards are all equal moves nothing. --full trains a language model on GSM8K through the library (a GPU for 1.7B).
"""

import argparse

import torch

import assay
from assay.objectives import Denominators, PolicyOutputs, Rows, build, compute_advantages, preset

PROBLEMS = [(a, b) for a in range(5) for b in range(5)]
VOCABULARY = 11  # ten digits, and one token that ends the answer
END, LENGTH, GROUP = 10, 4, 8
OBJECTIVES = {
    "grpo": preset("grpo"),
    "dapo": preset("dapo"),
    "dr_grpo": preset("dr_grpo"),
    "grpo + k3 KL": preset("grpo", beta=0.005, kl_estimator="k3"),
}


def sample(logits, generator):
    """Draw GROUP answers for each problem: tokens [P*G, T], and the mask of those up to and including the first END."""
    probabilities = logits.detach().softmax(-1).repeat_interleave(GROUP, dim=0)
    flat = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator)
    tokens = flat.view(-1, LENGTH)
    ended_before = ((tokens == END).cumsum(1) - (tokens == END).int()) > 0
    return tokens, ~ended_before


def verify(tokens, problems):
    """Reward [P*G]: 1 where the digits before END spell the sum, else 0. Nothing else is paid for."""
    answers = []
    for row in tokens.tolist():
        digits = row[: row.index(END)] if END in row else []
        answers.append("".join(map(str, digits)))
    gold = [str(a + b) for a, b in problems for _ in range(GROUP)]
    return torch.tensor([float(answer == right) for answer, right in zip(answers, gold, strict=True)])


def log_probs(logits, tokens):
    """[P*G, T] log-probabilities of the written tokens under a table of logits [P, T, V]."""
    return logits.log_softmax(-1).repeat_interleave(GROUP, dim=0).gather(2, tokens.unsqueeze(2)).squeeze(2)


def update(logits, base, tokens, mask, rewards, spec):
    """One policy-gradient loss over the batch, and its advantages: everything that GRPO is."""
    groups = torch.arange(len(logits)).repeat_interleave(GROUP)
    result = compute_advantages(rewards.unsqueeze(1), groups, None, spec)
    objective = build(spec)
    counts = objective.measure(mask, groups, result.no_signal)
    rows = Rows(mask, result.advantages, ref_logps=log_probs(base, tokens) if objective.needs_ref else None)
    window = Denominators.from_sums(counts, max_completion_length=LENGTH)
    loss, metrics = objective(PolicyOutputs(log_probs(logits, tokens)), rows, window)
    return loss, result, metrics.values()


def train(name, steps=91, seed=0):
    """The reward of the first step, and its mean over the last ten."""
    spec, generator = OBJECTIVES[name], torch.Generator().manual_seed(seed)
    base = torch.zeros(len(PROBLEMS), LENGTH, VOCABULARY)
    base[:, 1:, END] = 1.5  # a base model that already likes short answers, and knows no sums
    logits = base.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.1)
    history = []
    for step in range(steps):
        tokens, mask = sample(logits, generator)
        rewards = verify(tokens, PROBLEMS)
        loss, result, metrics = update(logits, base, tokens, mask, rewards, spec)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(rewards.mean().item())
        if step % 30 == 0:
            dead, kl = result.no_signal.float().mean().item(), metrics.get("kl", 0.0)
            print(f"{name:<13} step {step:>3}  reward {history[-1]:.2f}  without signal {dead:.2f}  kl {kl:.3f}")
    return history[0], sum(history[-10:]) / 10


def gradient_of_equal_rewards(spec):
    """Largest absolute gradient where every answer of every group earned the same."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(PROBLEMS), LENGTH, VOCABULARY, generator=generator).requires_grad_()
    tokens, mask = sample(logits, generator)
    loss, result, _ = update(logits, logits.detach(), tokens, mask, torch.ones(len(tokens)), spec)
    loss.backward()
    assert result.no_signal.all()
    return logits.grad.abs().max().item()


def smoke():
    for name in OBJECTIVES:
        start, end = train(name)
        assert start < 0.20, f"{name}: the reward began at {start:.2f}: there was nothing to learn"
        assert end > 0.80, f"{name}: the reward ended at {end:.2f}"
    for name in ("grpo", "dapo", "dr_grpo"):
        assert gradient_of_equal_rewards(OBJECTIVES[name]) == 0.0, f"{name}: equal rewards moved the policy"
    print("all four learn; a group with equal rewards has no gradient")


def full(options):
    data = {
        "source": "hub", "name": options.dataset, "config": "main", "heldout_split": "test", "heldout_size": 200,
        "template": "{question}\nReason step by step, then give the final number as \\boxed{{...}}.",
    }  # fmt: skip
    keys = {"loss_type": options.loss_type, "importance_sampling_level": options.is_level}
    if options.is_level == "sequence":  # GSPO: geometric-mean ratios move far less, so its band is tiny
        keys |= {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4, "steps_per_generation": 8}
    result = assay.train(
        model=options.model, data=data, rewards=["gsm8k"], preset="grpo", **keys,
        scale_rewards=options.scale_rewards, mask_truncated_completions=True, lora=True,
        num_generations=8, max_completion_length=1024, **{"train.steps": options.max_steps},
        trackers=[] if options.report_to == "none" else [options.report_to],
        name=f"gsm8k-{keys['loss_type']}-{options.scale_rewards}-{options.is_level}",
    )  # fmt: skip
    print(f"held-out accuracy {result.summary['heldout_before']:.3f} -> {result.summary['heldout_after']:.3f}")


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--smoke", action="store_true", help="tabular policies, seconds on a CPU")
    mode.add_argument("--full", action="store_true", help="a language model on GSM8K")
    parser.add_argument("--model", default="Qwen/Qwen3-1.7B")
    parser.add_argument("--dataset", default="openai/gsm8k", help="a hub dataset, or a folder in its layout")
    parser.add_argument("--loss-type", default="dapo")
    parser.add_argument("--scale-rewards", default="group", choices=["group", "batch", "none"])
    parser.add_argument("--is-level", default="token", choices=["token", "sequence"])
    parser.add_argument("--max-steps", type=int, default=300)
    parser.add_argument("--report-to", default="none")
    return parser.parse_args(words)


if __name__ == "__main__":
    options = parse()
    smoke() if options.smoke else full(options)
