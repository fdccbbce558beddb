"""Runs an untrusted program and returns what happened. Standard library only; a leaf. Nothing here knows about rewards,
models or training."""
