"""The parts of a run, built from its configuration when they are first asked for."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch

from assay.config.schema import RunConfig
from assay.errors import InputError
from assay.policy import Policy, load_policy, load_tokenizer, stop_token_ids
from assay.prompts import PromptPool, load_prompts
from assay.ranks import Ranks
from assay.records import Group, Prompt
from assay.rewards import Scorer
from assay.rollouts.build import build_engine, check_engine
from assay.rollouts.producer import content_of, stream_seed
from assay.rollouts.protocol import Engine, Request, Sampling, generate
from assay.rollouts.shared_engine import SharedEngine


class Session:
    """Tokenizer, prompts, scorer, policy and engine of a `RunConfig`; each exists once. Close it, or use `with`.

    `dataset` (rows in memory) takes the place of the configuration's source. `measured` holds what an earlier start of
    the same run found out about this machine (dtype, threads), which is then not measured again.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        dataset: Any = None,
        measured: Mapping[str, Any] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.config = config
        self.dataset = dataset
        self.measured: dict[str, Any] = dict(measured or {})
        self.kept: list[Scorer] = []
        self.ranks = ranks or Ranks()
        check_engine(config.rollout)
        threads = self.measured.setdefault("threads", torch.get_num_threads())
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    @functools.cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer(self.config.model)

    @functools.cached_property
    def pool(self) -> PromptPool:
        """Training and held-out prompts; too long for the model's context is left out and counted."""
        return load_prompts(
            self.config.data,
            self.tokenizer,
            rows=None if self.dataset is None else rows_of(self.dataset),
            longest=self.longest_prompt,
        )

    @property
    def longest_prompt(self) -> int | None:
        """Prompt tokens that the model's context leaves beside a completion."""
        rollout = self.config.rollout
        limits = [
            getattr(self.policy.config, "max_position_embeddings", None),
            None if rollout.engine == "transformers" else rollout.vllm.max_model_len,
        ]
        context = min((limit for limit in limits if limit is not None), default=None)
        if context is None:
            return None
        room = context - self.config.rollout.max_completion_length
        if room < 1:
            raise InputError(
                f"rollout.max_completion_length is {self.config.rollout.max_completion_length}, but the model's "
                f"context has {context} tokens for prompt and completion; lower it"
            )
        return room

    @functools.cached_property
    def scorer(self) -> Scorer:
        if not self.config.rewards.functions:
            raise InputError("rewards: no reward function is given; name at least one, for example rewards: [math]")
        return Scorer(options=self.config.rewards)

    @functools.cached_property
    def heldout_scorer(self) -> Scorer:
        """What marks held-out answers: `eval.rewards`, or the training's scorer."""
        options = self.config.rewards
        if not self.config.eval.rewards:
            return self.scorer
        return self.keep(Scorer(options=replace(options, functions=self.config.eval.rewards, primary="")))

    def keep(self, scorer: Scorer) -> Scorer:
        """A scorer beside the training's, to be closed with the session."""
        self.kept.append(scorer)
        return scorer

    @functools.cached_property
    def policy(self) -> Policy:
        policy = load_policy(self.config.model, seed=self.config.seed, choices=self.measured.get("policy"))
        self.measured["policy"] = dict(policy.choices)
        self.measured["parameters"] = sum(weight.numel() for weight in policy.transformer.parameters())
        return policy

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine with the policy's present weights; shared with the pipeline where rollouts are asynchronous."""
        engine = self.own_engine()
        return SharedEngine(engine) if self.config.rollout.max_staleness else engine

    def own_engine(self) -> Engine:
        """A new engine of the kind that `rollout.engine` names."""
        stops = stop_token_ids(self.policy.transformer, self.tokenizer)
        rollout = self.config.rollout
        if self.config.train.updates_per_round > 1:
            # What the sampler computed holds for the first update only; all of them shall compute alike.
            rollout = replace(rollout, keep_outputs_gib=0.0)
        return build_engine(self.policy, stops, rollout, self.ranks)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion, as verifiers see it: without special tokens."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling, n: int, seed: int = 0) -> list[Group]:
        """`n` answers a prompt, in order, not marked; on several ranks each writes a share and all get all.

        A prompt's random stream depends on the prompt and `seed` alone, so two checkpoints see the same numbers.
        """
        own = self.ranks.share(list(prompts))
        requests = [
            Request(
                prompt.token_ids,
                sampling,
                n,
                stream_seed(seed or self.config.eval.seed, prompt.content_key),
                prompt.media,
            )
            for prompt in own
        ]
        groups = []
        for prompt, completions in zip(own, generate(self.engine, requests), strict=True):
            for completion in completions:
                completion.content = content_of(completion, prompt, self.decode)
            groups.append(Group(prompt, completions))
        return self.ranks.interleave(self.ranks.gather(groups))

    def close(self) -> None:
        """Stop the workers and the engine, where they were started."""
        self.__dict__.pop("heldout_scorer", None)
        while self.kept:
            self.kept.pop().close()
        for part in ("scorer", "engine"):
            if part in self.__dict__:
                self.__dict__.pop(part).close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rows_of(dataset: Any) -> list[dict[str, Any]]:
    """Rows of a list of mappings, a datasets.Dataset, or a pandas DataFrame."""
    if hasattr(dataset, "to_dict") and hasattr(dataset, "columns"):
        return dataset.to_dict("records")
    try:
        rows = [dict(row) for row in dataset]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"dataset is a {type(dataset).__name__}; give rows (a list of dicts, a datasets.Dataset, a DataFrame) "
            "or a recipe"
        ) from error
    return rows
