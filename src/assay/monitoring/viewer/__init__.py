"""The rollouts browser: a local page over a run's stored rollouts. Reads, never writes; completions are hostile text
and reach the page as JSON only."""

from assay.monitoring.viewer.query import Filter, find_groups, prompt_history
from assay.monitoring.viewer.server import RolloutServer

__all__ = ["Filter", "RolloutServer", "find_groups", "prompt_history"]
