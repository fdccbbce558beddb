"""The mathematics: advantages, surrogates, aggregation, KL, entropy, mismatch weights, filters, and the presets that
name points on these axes. Pure functions and small frozen dataclasses over torch tensors. Imports torch and the
standard library only: never a model, a configuration object, a logger, an accelerator or a file."""

from assay.objectives.advantages import AdvantageResult, TokenInputs, compute_advantages, optimal_value
from assay.objectives.aggregation import AGGREGATIONS
from assay.objectives.batch import PolicyOutputs, Rows, group_tokens
from assay.objectives.denominators import Denominators
from assay.objectives.entropy import EntropyController, entropy_threshold, high_entropy_mask, top_entropy_mask
from assay.objectives.filters import drop_truncated, off_policy_mask
from assay.objectives.kl import KL_ESTIMATORS, reference_is_due, update_reference
from assay.objectives.metrics import Metrics
from assay.objectives.objective import Objective, build
from assay.objectives.presets import DIALECTS, PRESETS, Dialect, Preset, preset
from assay.objectives.ratio import RATIO_LEVELS
from assay.objectives.spec import LOSS_TYPES, ObjectiveSpec
from assay.objectives.surrogates import SURROGATES, SurrogateRow
from assay.objectives.values import gae, value_loss, whiten

__all__ = [
    "AGGREGATIONS",
    "DIALECTS",
    "KL_ESTIMATORS",
    "LOSS_TYPES",
    "PRESETS",
    "RATIO_LEVELS",
    "SURROGATES",
    "AdvantageResult",
    "Denominators",
    "Dialect",
    "EntropyController",
    "Metrics",
    "Objective",
    "ObjectiveSpec",
    "PolicyOutputs",
    "Preset",
    "Rows",
    "SurrogateRow",
    "TokenInputs",
    "build",
    "compute_advantages",
    "drop_truncated",
    "entropy_threshold",
    "gae",
    "group_tokens",
    "high_entropy_mask",
    "off_policy_mask",
    "optimal_value",
    "preset",
    "reference_is_due",
    "top_entropy_mask",
    "update_reference",
    "value_loss",
    "whiten",
]
