"""Held-out evaluation, pass@k, comparison of runs, compute-scaling fits.

Lives here: what is measured of a model that trains or has trained, and how sure one may be of it. Never here: anything
that changes a model, a curriculum or a reward; whatever needs a model is handed in as a callable.
"""

from assay.evaluation.fit import SigmoidFit, fit_sigmoid, sigmoid
from assay.evaluation.fit_compare import compare_fits
from assay.evaluation.heldout import HeldoutResult, compare, divergence, evaluate
from assay.evaluation.intervals import Difference, Interval, mcnemar, paired_difference, rate_interval, wilson
from assay.evaluation.options import EvalOptions
from assay.evaluation.passk import curve, paired_curve, pass_at_k, pass_hat_k
from assay.evaluation.progress import Heldout, HeldoutRound, HeldoutSet
from assay.evaluation.verdicts import HeldoutLog, read_verdicts

__all__ = [
    "Difference",
    "EvalOptions",
    "Heldout",
    "HeldoutLog",
    "HeldoutResult",
    "HeldoutRound",
    "HeldoutSet",
    "Interval",
    "SigmoidFit",
    "compare",
    "compare_fits",
    "curve",
    "divergence",
    "evaluate",
    "fit_sigmoid",
    "mcnemar",
    "paired_curve",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "rate_interval",
    "read_verdicts",
    "sigmoid",
    "wilson",
]
