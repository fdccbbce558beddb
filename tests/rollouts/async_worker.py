"""Trains a recipe in this process over an engine in a thread. Started, and killed, by the tests: python async_worker.py
RECIPE TICK"""

import sys

import torch

import assay
from assay.api import session

if __name__ == "__main__":
    from background import BackgroundEngine

    torch.set_num_threads(1)
    session.build_engine = lambda *_: BackgroundEngine(tick=float(sys.argv[2]), slots=3)
    assay.train(sys.argv[1], overrides=["monitoring.console=quiet"])
