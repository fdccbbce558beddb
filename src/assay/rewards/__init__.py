"""What a completion is worth: verifiers, the calling contract of reward functions, auditing, tampering detection. Sets
`Completion.correct` once for every room. Never generates text and never touches the policy."""

from assay.rewards.combine import reward_table
from assay.rewards.contract import RewardError
from assay.rewards.options import RewardOptions, RewardSpec
from assay.rewards.registry import BUILTINS, RewardFunction, load_reward, load_rewards
from assay.rewards.scorer import Scorer
from assay.rewards.verifier import Verifier, completion_text

__all__ = [
    "BUILTINS",
    "RewardError",
    "RewardFunction",
    "RewardOptions",
    "RewardSpec",
    "Scorer",
    "Verifier",
    "completion_text",
    "load_reward",
    "load_rewards",
    "reward_table",
]
