"""The mathematics: advantages, surrogates, aggregation, KL, entropy, mismatch weights, filters, and the presets that name points
on these axes. Pure functions and small frozen dataclasses over torch tensors. Imports torch and the standard library only:
never a model, a configuration object, a logger, an accelerator or a file."""
