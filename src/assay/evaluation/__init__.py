"""Held-out evaluation, pass@k, comparison of runs, compute-scaling fits."""
