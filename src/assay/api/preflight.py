"""What `assay check` measures on a session before anything is trained; the rules in monitoring/preflight judge it."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.api.session import Session
from assay.config.load import plain
from assay.monitoring.preflight import Evidence
from assay.monitoring.sources import flatten
from assay.policy import ScoringBatch, stop_token_ids
from assay.policy.memory import activation_bytes, sequence_bytes
from assay.prompts import Curriculum
from assay.records import Completion, Finish, Group, Prompt, Segment
from assay.rewards import Scorer
from assay.rewards.audit import audit
from assay.rewards.options import RewardOptions, RewardSpec
from assay.rollouts.canary import Provable, prove
from assay.rollouts.protocol import Request, Sampling, generate
from assay.training.checkpoint import Checkpoints, size_of

GOLD_ROWS, ATTACK_ROWS = 200, 20
# A push that takes longer hangs; a 70-billion-parameter model is sent in less.
PUSH_LIMIT_S = 600.0
HANG_LIMIT_S = 2.0


def gather(session: Session, prompts: int, samples: int, note: Callable[[str], None] = lambda text: None) -> Evidence:
    """Measure everything that the rules ask for; weights, engine and files are afterwards what they were."""
    config = session.config
    facts = flatten(plain(config))
    facts["learning_rate"] = config.train.peak_learning_rate(config.model.lora)
    note("Reading prompts and auditing the verifiers ...")
    pool = session.pool
    rows = [dict(prompt.row) for prompt in pool.train[:GOLD_ROWS]]
    audits = [audit(spec, rows, session.tokenizer, ATTACK_ROWS) for spec in config.rewards.functions]
    # Both are built when they are first asked for; what is resident now stays.
    session.policy, session.engine  # noqa: B018
    loaded = resident_bytes()
    note(f"Letting the untrained model answer {prompts} prompts {samples} times ...")
    sampling = Sampling(config.rollout.max_completion_length, config.rollout.temperature)
    started = time.monotonic()
    groups = session.sample(pool.train[:prompts], sampling, samples)
    generated = time.monotonic()
    session.scorer.score(groups)
    scored = time.monotonic()
    note("Scoring them with the trainer, two updates, one checkpoint and one push ...")
    logps = trainer_logps(session, groups)
    policy = session.policy
    # One pass forward took this long; forward and backward take about three times that.
    trained = 3 * (time.monotonic() - scored)
    share = config.train.prompts_per_step * config.rollout.num_generations / max(1, prompts * samples)
    free = existing(Path(config.output_dir))
    return Evidence(
        train=pool.train,
        heldout=pool.heldout,
        facts=facts,
        groups=groups,
        audits=audits,
        trainer_logps=logps,
        dry_update=dry_update(session, groups),
        checkpoint=trial_checkpoint(session, free),
        sync=within(PUSH_LIMIT_S, lambda: trial_push(session, pool.train[0])),
        endless=endless_reward(config.rewards),
        tokenizer=session.tokenizer,
        stop_token_ids=frozenset(stop_token_ids(policy.transformer, session.tokenizer)),
        context=getattr(policy.config, "max_position_embeddings", None),
        pool_report=pool.report,
        parameters=sum(parameter.numel() for parameter in policy.parameters()),
        trainable=sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad),
        vocabulary=getattr(policy.config, "vocab_size", None),
        memory_bytes=memory_bytes(),
        footprint=None if loaded is None else {"loaded": loaded, **kept_bytes(session, groups)},
        free_disk_bytes=shutil.disk_usage(free).free,
        seconds={
            "generate_per_step": (generated - started) * share,
            "score_per_step": (scored - generated) * share,
            "train_per_step": trained * share,
        },
    )


def batch_of(groups: Sequence[Group]) -> ScoringBatch:
    return ScoringBatch(
        tuple(np.array(group.prompt.token_ids) for group in groups),
        tuple(item.segments[0].token_ids for group in groups for item in group.completions),
        tuple(index for index, group in enumerate(groups) for _ in group.completions),
    )


def trainer_logps(session: Session, groups: Sequence[Group]) -> list[np.ndarray]:
    """Log-probs of every completion under the trainer, group by group so that memory stays small."""
    found = []
    for group in groups:
        with torch.no_grad():
            logps = session.policy(batch_of([group]), temperature=session.config.rollout.temperature).logps
        for row, item in zip(logps.cpu().numpy(), group.completions):
            found.append(row[: item.num_tokens])
    return found


def dry_update(session: Session, groups: Sequence[Group]) -> Mapping[str, Any]:
    """Two real AdamW steps on one group (the first that differs inside), undone afterwards to the last bit."""
    policy = session.policy
    mixed = next((group for group in groups if len({item.reward for item in group.completions}) > 1), groups[0])
    rewards = [item.reward or 0.0 for item in mixed.completions]
    if len(set(rewards)) < 2:
        # Any advantages show whether gradients flow; the groups' lack of signal is PF06's matter.
        rewards = [float(index % 2) for index in range(len(rewards))]
    batch = batch_of([mixed])
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        first = policy(batch).logps
        reference_kl = float((first - policy.reference(batch)).mean())
    optimizer = torch.optim.AdamW(parameters, lr=session.config.train.peak_learning_rate(policy.has_adapters))
    norms, finite = [], True
    for _ in range(2):
        logps = policy(batch).logps
        advantages = torch.tensor(rewards, device=logps.device)
        loss = -((advantages - advantages.mean())[:, None] * logps).mean()
        loss.backward()
        norms.append(math.sqrt(sum(float(p.grad.float().norm()) ** 2 for p in parameters if p.grad is not None)))
        finite = finite and math.isfinite(loss.item()) and math.isfinite(norms[-1])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    changed = any(not torch.equal(old, new) for old, new in zip(before, parameters))
    with torch.no_grad():
        for parameter, old in zip(parameters, before):
            parameter.copy_(old)
        restored = torch.equal(policy(batch).logps, first)
    return {
        "finite": finite,
        "grad_norm": norms[0],
        "second_grad_norm": norms[1],
        "changed": changed,
        "restored": restored,
        "reference_kl": reference_kl,
    }


def trial_checkpoint(session: Session, folder: Path) -> Mapping[str, Any]:
    """Save a checkpoint where the run's will lie, load it, and compare weights, optimiser moments and next prompts."""
    policy, config = session.policy, session.config
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.0)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()  # at learning rate 0: makes the moments, moves nothing
    optimizer.zero_grad(set_to_none=True)

    def curriculum() -> Curriculum:
        options, size = config.curriculum, config.rollout.num_generations
        return Curriculum(session.pool.train, options, num_generations=size, seed=config.seed)

    running, resumed = curriculum(), curriculum()
    running.draw(config.train.prompts_per_step)
    weights = {name: tensor.detach().clone() for name, tensor in policy.trainable_state_dict().items()}
    state: dict[str, Any] = {
        "optimizer": optimizer.state_dict(),
        "curriculum": running.state_dict(),
        "rng": torch.get_rng_state(),
    }
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".assay-check-") as place:
        checkpoints = Checkpoints(Path(place), keep=1)
        checkpoints.save(1, weights, state)
        size = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())
        loaded, found = checkpoints.load(1)
    seconds = time.monotonic() - started
    policy.load_trainable_state_dict(loaded)
    back = policy.trainable_state_dict()
    resumed.load_state_dict(found["curriculum"])
    count = config.train.prompts_per_step
    same = {
        "weights": all(torch.equal(back[name].cpu(), tensor.cpu()) for name, tensor in weights.items()),
        "optimizer": same_tensors(found["optimizer"], state["optimizer"]),
        "prompts": [p.content_key for p in running.draw(count)] == [p.content_key for p in resumed.draw(count)],
        "random numbers": torch.equal(found["rng"], state["rng"]),
    }
    return {"same": same, "bytes": size, "in_memory": size_of(weights) + size_of(state), "seconds": seconds}


def same_tensors(left: Any, right: Any) -> bool:
    """Whether two nested states are equal to the last bit, wherever their tensors lie."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left.cpu(), right.cpu())
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same_tensors(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same_tensors, left, right))
    return bool(left == right)


def trial_push(session: Session, prompt: Prompt) -> Mapping[str, Any]:
    """Push one doubled weight, see whether the engine's log-probs change, push the true ones, see that they return."""

    def ask() -> Segment:
        request = Request(prompt.token_ids, Sampling(4, 1.0), 1, seed=1)
        return generate(session.engine, [request])[0][0].segments[0]

    started = time.monotonic()
    if isinstance(session.engine, Provable):
        # Raises, with numbers, if weights do not arrive; adapters are not pushed one weight at a time.
        prove(session.engine, session.policy, session.ranks)
        return {"arrived": True, "restored": True, "seconds": time.monotonic() - started}
    before = ask()
    weights = list(session.policy.named_full_weights())
    chosen = max(index for index, (name, _) in enumerate(weights) if "proj" in name or "mlp" in name)
    session.engine.push(
        ((name, tensor * 2 if index == chosen else tensor) for index, (name, tensor) in enumerate(weights)), 1
    )
    perturbed = ask()
    session.engine.push(iter(weights), 2)
    after = ask()
    return {
        "arrived": not np.array_equal(before.sampling_logps, perturbed.sampling_logps),
        "restored": np.array_equal(before.sampling_logps, after.sampling_logps),
        "seconds": time.monotonic() - started,
    }


def within(limit: float, measure: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """What `measure` returns, or {"hangs": limit} where it has not come back; what it raises is raised here."""
    found: dict[str, Any] = {}
    errors: list[BaseException] = []

    def work() -> None:
        try:
            found.update(measure())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work, name="assay-check", daemon=True)
    thread.start()
    thread.join(limit)
    if errors:
        raise errors[0]
    return {"hangs": limit} if thread.is_alive() else found


def endless(completions: Sequence[Any], **columns: Any) -> list[float]:
    """A reward function that never returns."""
    while True:
        time.sleep(0.01)


def endless_reward(options: RewardOptions) -> Mapping[str, Any]:
    """Mark one completion with `endless`, as the recipe's own functions are run: what came of it, after how long."""
    isolated = any(spec.isolation == "process" for spec in options.functions)
    spec = RewardSpec(f"{__name__}:endless", isolation="process" if isolated else "thread")
    segment = Segment(np.zeros(1, np.int64), np.ones(1, bool), np.zeros(1, np.float32))
    group = Group(Prompt("", (0,)), [Completion([segment], Finish.STOP, "")])
    started = time.monotonic()
    with Scorer(options=replace(options, functions=(spec,), primary="", sample_timeout_s=HANG_LIMIT_S)) as scorer:
        scorer.score([group])
        seconds = time.monotonic() - started
    outcome = str(next(iter(group.completions[0].judgements.values())).outcome)
    return {"outcome": outcome, "seconds": seconds, "limit": HANG_LIMIT_S, "isolation": spec.isolation}


def memory_bytes() -> int | None:
    """Memory of the accelerator, else of this machine."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def resident_bytes() -> float | None:
    """What this process holds now, on the accelerator if there is one; None where it cannot be told."""
    if torch.cuda.is_available():
        return float(torch.cuda.memory_allocated())
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except FileNotFoundError:
        return None
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def kept_bytes(session: Session, groups: Sequence[Group]) -> dict[str, float]:
    """What scoring keeps for backward, a token and whatever the tokens; from one group with half and all its rows."""
    batch = batch_of(groups[:1])
    half = batch.select(range(max(1, len(batch.rows) // 2)))
    policy = session.policy
    sizes = [float(activation_bytes(policy, part)) for part in (half, batch)]
    tokens = [sum(map(len, part.prompts)) + sum(map(len, part.rows)) for part in (half, batch)]
    slope = (sizes[1] - sizes[0]) / (tokens[1] - tokens[0]) if tokens[1] > tokens[0] else sizes[1] / tokens[1]
    anyway = max(0.0, sizes[1] - slope * tokens[1])
    recorder = getattr(session.engine, "recorder", None)
    return {
        "kept_per_token": slope,
        "kept_anyway": anyway,
        "cache_per_token": float(sequence_bytes(policy)),
        "outputs_per_token": float(recorder.token_bytes) if recorder else 0.0,
    }


def existing(path: Path) -> Path:
    """The nearest folder above that exists."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path
