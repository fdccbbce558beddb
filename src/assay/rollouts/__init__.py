"""Who writes the completions: the engine protocol, the engines, and the producer of scored groups. Nothing outside this
room knows which engine runs. Never computes a gradient."""

from assay.rollouts.protocol import Engine, Request, Sampling, generate
from assay.rollouts.transformers_engine import TransformersEngine, TransformersEngineOptions

__all__ = ["Engine", "Request", "Sampling", "TransformersEngine", "TransformersEngineOptions", "generate"]
