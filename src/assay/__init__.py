"""assay: post-train language models by reinforcement learning with verifiable rewards."""

__version__ = "0.1.0"
