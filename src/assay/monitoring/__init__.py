"""Seeing a run: metrics, the rollout store, trackers, console, preflight, doctor, report, viewer. Reads run directories and
never changes training."""
