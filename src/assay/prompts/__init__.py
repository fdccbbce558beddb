"""Where prompts come from and which of them to spend generation on: sources, procedural tasks, difficulty, curriculum.
Never loads a model."""

from assay.prompts.beliefs import Beliefs, expected_mixed, mixed_probability
from assay.prompts.curriculum import Curriculum
from assay.prompts.difficulty import Estimate, Filtered, FilterOptions, Store, apply_filter, estimate
from assay.prompts.options import CurriculumOptions, DataOptions, FieldOptions, RefillOptions, SourceOptions
from assay.prompts.pool import PoolReport, PromptPool, load_prompts
from assay.prompts.refill import Batch, Refill, collect, has_signal
from assay.prompts.schedules import RewardCurriculum, Schedule, reward_curriculum
from assay.prompts.tasks import TASKS, email_rows, email_schema

__all__ = [
    "TASKS",
    "Batch",
    "Beliefs",
    "Curriculum",
    "CurriculumOptions",
    "DataOptions",
    "Estimate",
    "FieldOptions",
    "FilterOptions",
    "Filtered",
    "PoolReport",
    "PromptPool",
    "Refill",
    "RefillOptions",
    "RewardCurriculum",
    "Schedule",
    "SourceOptions",
    "Store",
    "apply_filter",
    "collect",
    "email_rows",
    "email_schema",
    "estimate",
    "expected_mixed",
    "has_signal",
    "load_prompts",
    "mixed_probability",
    "reward_curriculum",
]
