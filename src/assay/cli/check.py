"""`assay check RECIPE`: would this run learn? Before spending a GPU-hour."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import note, print_json

if TYPE_CHECKING:
    from assay.api.session import Session
    from assay.monitoring.preflight import Report
    from assay.records import Group

GOLD_ROWS, ATTACK_ROWS = 200, 20


def check(
    recipe: Annotated[str, typer.Argument(help="The recipe that is to be trained.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[section.key=value ...]")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts that the untrained model answers.")] = 16,
    samples: Annotated[int, typer.Option(help="Answers a prompt; 0 takes rollout.num_generations.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say what would keep a run from learning, in minutes: try the verifier on gold and on non-answers, let the
    untrained model answer a few prompts, score them with sampler and trainer, make one update and undo it. Exit status
    1 if anything would."""
    from assay.api.session import Session
    from assay.config.load import load_recipe
    from assay.monitoring.preflight import preflight

    config = load_recipe(recipe, overrides or [])
    with Session(config) as session:
        report = preflight(gather(session, prompts, samples or config.rollout.num_generations))
    if as_json:
        print_json(report.to_json())
    else:
        show(report)
    if report.alarming:
        sys.exit(1)


def gather(session: Session, prompts: int, samples: int) -> Any:
    """Measure everything that the rules ask for."""
    from assay.config.load import plain
    from assay.monitoring.preflight import Evidence
    from assay.monitoring.sources import flatten
    from assay.policy import stop_token_ids
    from assay.rewards.audit import audit
    from assay.rollouts.protocol import Sampling

    config = session.config
    facts = flatten(plain(config))
    facts["learning_rate"] = config.train.peak_learning_rate(config.model.lora)
    note("Reading prompts and auditing the verifiers ...")
    pool = session.pool
    rows = [dict(prompt.row) for prompt in pool.train[:GOLD_ROWS]]
    audits = [audit(spec, rows, session.tokenizer, ATTACK_ROWS) for spec in config.rewards.functions]
    note(f"Letting the untrained model answer {prompts} prompts {samples} times ...")
    sampling = Sampling(config.rollout.max_completion_length, config.rollout.temperature)
    started = time.monotonic()
    groups = session.sample(pool.train[:prompts], sampling, samples)
    generated = time.monotonic()
    session.scorer.score(groups)
    scored = time.monotonic()
    note("Scoring them with the trainer, one update and one push ...")
    logps = trainer_logps(session, groups)
    policy = session.policy
    # One pass forward took this long; forward and backward take about three times that.
    trained = 3 * (time.monotonic() - scored)
    share = config.train.prompts_per_step * config.rollout.num_generations / max(1, prompts * samples)
    return Evidence(
        train=pool.train,
        heldout=pool.heldout,
        facts=facts,
        groups=groups,
        audits=audits,
        trainer_logps=logps,
        dry_update=dry_update(session, groups),
        sync=trial_push(session, pool.train[0]),
        tokenizer=session.tokenizer,
        stop_token_ids=frozenset(stop_token_ids(policy.transformer, session.tokenizer)),
        context=getattr(policy.config, "max_position_embeddings", None),
        pool_report=pool.report,
        parameters=sum(parameter.numel() for parameter in policy.parameters()),
        trainable=sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad),
        vocabulary=getattr(policy.config, "vocab_size", None),
        memory_bytes=memory_bytes(),
        free_disk_bytes=shutil.disk_usage(existing(Path(config.output_dir))).free,
        seconds={
            "generate_per_step": (generated - started) * share,
            "score_per_step": (scored - generated) * share,
            "train_per_step": trained * share,
        },
    )


def batch_of(groups: Sequence[Group]) -> Any:
    import numpy as np

    from assay.policy import ScoringBatch

    return ScoringBatch(
        tuple(np.array(group.prompt.token_ids) for group in groups),
        tuple(item.segments[0].token_ids for group in groups for item in group.completions),
        tuple(index for index, group in enumerate(groups) for _ in group.completions),
    )


def trainer_logps(session: Session, groups: Sequence[Group]) -> list[Any]:
    """Log-probs of every completion under the trainer, group by group so that memory stays small."""
    import torch

    found = []
    for group in groups:
        with torch.no_grad():
            logps = session.policy(batch_of([group]), temperature=session.config.rollout.temperature).logps
        for row, item in zip(logps.cpu().numpy(), group.completions):
            found.append(row[: item.num_tokens])
    return found


def dry_update(session: Session, groups: Sequence[Group]) -> Mapping[str, Any]:
    """One real AdamW step on one group (the first that differs inside), undone afterwards."""
    import math

    import torch

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
        reference_kl = float((policy(batch).logps - policy.reference(batch)).mean())
    logps = policy(batch).logps
    advantages = torch.tensor(rewards, device=logps.device)
    loss = -((advantages - advantages.mean())[:, None] * logps).mean()
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.float().norm()) ** 2 for p in parameters if p.grad is not None))
    torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.0).step()
    changed = any(not torch.equal(old, new) for old, new in zip(before, parameters))
    with torch.no_grad():
        for parameter, old in zip(parameters, before):
            parameter.copy_(old)
            parameter.grad = None
    finite = math.isfinite(loss.item()) and math.isfinite(norm)
    return {"finite": finite, "grad_norm": norm, "changed": changed, "reference_kl": reference_kl}


def trial_push(session: Session, prompt: Any) -> Mapping[str, Any]:
    """Push one doubled weight, see whether the engine's log-probs change, push the true ones, see that they return."""
    import numpy as np

    from assay.rollouts.protocol import Request, Sampling, generate

    def ask() -> Any:
        request = Request(prompt.token_ids, Sampling(4, 1.0), 1, seed=1)
        return generate(session.engine, [request])[0][0].segments[0]

    started = time.monotonic()
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


def memory_bytes() -> int | None:
    """Memory of the accelerator, else of this machine."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def existing(path: Path) -> Path:
    """The nearest folder above that exists."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def show(report: Report) -> None:
    """The text form, on stdout."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    marks = {"error": "[red]✖[/]", "warning": "[yellow]▲[/]", "info": "[blue]●[/]"}
    for item in report.checks:
        mark = marks.get(item.severity, "[green]✔[/]" if item.status == "clear" else "[dim]?[/]")
        console.print(f"{mark} {item.id} {escape(item.title)}: {escape(item.evidence)}")
        if item.fix:
            console.print(f"     do: {escape(item.fix)}" + (f" [dim]({item.key})[/]" if item.key else ""))
    cost = report.estimate
    if cost.get("hours") is not None:
        memory = sum((cost["memory_gib"] or {}).values())
        console.print(
            f"estimate: {cost['seconds_per_step']:.1f} s a step, {cost['hours']:.2f} h in all, about {memory:.1f} GiB "
            f"of "
            f"memory and {cost['disk_gib']:.2f} GiB of disk"
        )
    wrong = [item for item in report.checks if item.severity in ("error", "warning")]
    console.print(f"[bold]{'This run would probably not learn well.' if wrong else 'Nothing stands in the way.'}[/]")
