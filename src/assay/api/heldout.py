"""What held-out evaluation needs of a session: the sets of prompts with their scorers, and the base model to compare
with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from assay.api.session import Session
from assay.evaluation.heldout import LogProbs
from assay.evaluation.options import ForgettingSet
from assay.evaluation.progress import HeldoutSet
from assay.objectives import build
from assay.policy import ScoringBatch, load_policy
from assay.prompts import DataOptions, load_prompts
from assay.records import Group
from assay.rewards import Scorer
from assay.training.rows import scoring_batch, tensors_of


def heldout_sets(session: Session) -> list[HeldoutSet]:
    """The held-out prompts, and those that show forgetting; empty where nothing is held out."""
    config = session.config
    prompts = session.pool.heldout[: config.eval.prompts]
    if not prompts:
        return []
    sets = [HeldoutSet(prompts, session.heldout_scorer)]
    if config.eval.forgetting is not None:
        sets.append(forgetting_set(session, ForgettingSet.read(config.eval.forgetting)))
    return sets


def forgetting_set(session: Session, asked: ForgettingSet) -> HeldoutSet:
    """General prompts, through the run's chat template but without its system prompt and worked examples."""
    data = session.config.data
    options = DataOptions(
        mixture=(asked.source,),
        max_prompt_tokens=data.max_prompt_tokens,
        format=data.format,
        chat_template=data.chat_template,
        template_options=data.template_options,
        seed=data.seed,
    )
    pool = load_prompts(options, session.tokenizer, longest=session.longest_prompt)
    scorer = None
    if asked.rewards:
        scorer = session.keep(Scorer(options=replace(session.config.rewards, functions=asked.rewards, primary="")))
    return HeldoutSet((pool.heldout or pool.train)[: asked.prompts], scorer, "forgetting")


def log_probs(session: Session) -> LogProbs | None:
    """(policy's, base model's) log-probabilities of each completion, a group at a time; None where `eval.kl_to_base`
    leaves it out."""
    base = base_scorer(session)
    if base is None:
        return None

    def compare(groups: list[Group]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        policy, temperature = session.policy, session.config.rollout.temperature
        policy.eval()
        for group in groups:
            tokens, mask, _ = tensors_of(group.completions)
            batch = scoring_batch([group], tokens)
            with torch.no_grad():
                own = policy(batch, temperature=temperature).logps.float().cpu()
                other = base(batch, temperature).float().cpu()
            for row in range(len(tokens)):
                yield own[row][mask[row]].numpy(), other[row][mask[row]].numpy()

    return compare


def base_scorer(session: Session) -> Callable[[ScoringBatch, float], torch.Tensor] | None:
    """[B, T] log-probabilities under the model that the run began with.

    The policy's own reference serves where it is that model: adapters switched off, or the frozen copy of a KL term.
    Otherwise (full fine-tuning without a KL term, or a reference that moves) a copy is loaded, if it is asked for.
    """
    config, policy = session.config, session.policy
    wanted, moving = config.eval.kl_to_base, config.objective.sync_ref_model
    if wanted is False:
        return None
    if not moving and (policy.has_adapters or build(config.objective).needs_ref):
        return lambda batch, temperature: policy.reference(batch, temperature=temperature)
    if wanted is None:
        return None
    device = "cpu" if config.model.reference_device == "cpu" else policy.device
    options = replace(config.model, lora=False, critic="none")
    frozen = load_policy(options, device=device, choices=policy.choices).requires_grad_(False).eval()
    return lambda batch, temperature: frozen(batch, temperature=temperature).logps
