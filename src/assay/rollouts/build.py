"""The engine that a recipe names; nothing outside this room knows which it is."""

from __future__ import annotations

from collections.abc import Iterable

from assay.policy.model import Policy
from assay.ranks import Ranks
from assay.rollouts.options import RolloutOptions
from assay.rollouts.protocol import Engine
from assay.rollouts.transformers_engine import TransformersEngine, TransformersEngineOptions


def check_engine(rollout: RolloutOptions) -> None:
    """What can be said before any model is loaded.

    Raises:
        InputError: if vLLM is needed here and is missing, or is of a version that the engines do not know.
    """
    if rollout.engine == "vllm":
        from assay.rollouts.vllm_options import installed_version

        installed_version()


def build_engine(
    policy: Policy,
    stop_token_ids: Iterable[int],
    rollout: RolloutOptions,
    ranks: Ranks | None = None,
) -> Engine:
    """The engine of `rollout.engine`, holding the policy's present weights; a vLLM engine has proved that it does.

    Raises:
        InputError: if the engine cannot run here or cannot hold this policy.
        RunError: if its servers cannot be reached, or weights do not arrive (see `canary`).
    """
    if rollout.engine == "transformers":
        options = TransformersEngineOptions(rollout.kv_cache_gib, rollout.max_rows, rollout.keep_outputs_gib)
        return TransformersEngine.from_policy(policy, stop_token_ids, options)
    from assay.rollouts.canary import prove

    if rollout.engine == "vllm":
        from assay.rollouts.vllm_engine import VllmEngine

        engine: VllmEngine | VllmServerEngine = VllmEngine.from_policy(policy, stop_token_ids, rollout)
    else:
        from assay.rollouts.vllm_server import VllmServerEngine

        engine = VllmServerEngine.from_policy(policy, stop_token_ids, rollout.vllm, ranks)
    try:
        prove(engine, policy, ranks or Ranks())
    except BaseException:
        engine.close()
        raise
    return engine
