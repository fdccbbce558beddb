"""The model that learns: loading, LoRA, log-probabilities (chunked, prefix-shared), reference, critic. One nn.Module
that wrappers can wrap; nobody outside calls its backbone or head. Never decides what is good."""

from assay.policy.batch import ScoringBatch
from assay.policy.batching import micro_batch_tokens, plan_micro_batches
from assay.policy.loading import load_policy, load_tokenizer, stop_token_ids, turn_end
from assay.policy.model import Policy
from assay.policy.options import ModelOptions

__all__ = [
    "ModelOptions",
    "Policy",
    "ScoringBatch",
    "load_policy",
    "load_tokenizer",
    "micro_batch_tokens",
    "plan_micro_batches",
    "stop_token_ids",
    "turn_end",
]
