"""The one tree of options of a run: every section is a dataclass that its room defines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from assay.errors import InputError
from assay.evaluation.options import EvalOptions
from assay.monitoring.options import MonitorOptions
from assay.objectives import ObjectiveSpec
from assay.policy.options import ModelOptions
from assay.prompts.options import CurriculumOptions, DataOptions, RefillOptions
from assay.rewards.options import RewardOptions
from assay.rollouts.options import RolloutOptions
from assay.training.options import TrainOptions
from assay.training.sft_options import SftOptions


@dataclass(frozen=True)
class RunConfig:
    """What a run is; `resolved` in the run directory is exactly this, every default spelled out."""

    name: Annotated[str, "The run's folder under output_dir; the same name again resumes it."] = "run"
    output_dir: Annotated[str, "Where run directories lie."] = "runs"
    seed: Annotated[int, "Seeds data order, sampling and initialisation; change it to repeat an experiment."] = 0
    preset: Annotated[
        str | None, "A published recipe that fills in what this file leaves open; any key overrides it."
    ] = "dapo"
    dialect: Annotated[
        str | None,
        "A framework whose constants the objective takes where they differ, such as trl or verl, to compare runs.",
    ] = None
    model: ModelOptions = field(default_factory=ModelOptions)
    data: DataOptions = field(default_factory=DataOptions)
    rewards: RewardOptions = field(default_factory=RewardOptions)
    curriculum: CurriculumOptions = field(default_factory=CurriculumOptions)
    refill: RefillOptions = field(default_factory=RefillOptions)
    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    objective: ObjectiveSpec = field(default_factory=ObjectiveSpec)
    train: TrainOptions = field(default_factory=TrainOptions)
    sft: SftOptions = field(default_factory=SftOptions)
    eval: EvalOptions = field(default_factory=EvalOptions)
    monitoring: MonitorOptions = field(default_factory=MonitorOptions)

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name in (".", ".."):
            raise InputError(f"name is {self.name!r}; it becomes a folder under output_dir, so give a plain name")
        if self.rollout.num_generations == 1 and self.refill.dynamic_sampling:
            raise InputError(
                "rollout.num_generations is 1 and refill.dynamic_sampling is true: one completion never differs from "
                "itself, so that every group would be dropped; set dynamic_sampling to false, or more generations"
            )
        if self.rollout.num_generations == 1 and self.objective.baseline in ("group_mean", "leave_one_out"):
            raise InputError(
                f"rollout.num_generations is 1 and objective.baseline is {self.objective.baseline}: one completion has "
                "no other to be compared with, so that nothing would be learned; draw more, or take another baseline"
            )
        if self.objective.baseline == "given":
            self.check_stage_one()
        if self.rollout.max_staleness and not self.objective.vllm_importance_sampling_correction:
            raise InputError(
                f"rollout.max_staleness is {self.rollout.max_staleness} and "
                "objective.vllm_importance_sampling_correction is false: nothing would correct for the older policies "
                "that wrote the completions; set it to true, or max_staleness to 0"
            )

    def check_stage_one(self) -> None:
        """What is reachable on a prompt is estimated once: rewards must mean the same ever after, and be one number."""
        wrong = {
            "curriculum.reward_weights change rewards with the step": bool(self.curriculum.reward_weights),
            "objective.multi_objective_aggregation=normalize_then_sum ignores it": (
                self.objective.multi_objective_aggregation == "normalize_then_sum"
            ),
        }
        for reason, is_so in wrong.items():
            if is_so:
                raise InputError(f"objective.baseline is given, the value of a prompt before training, but {reason}")
