"""What a run's config.yaml says beside the configuration: which data, how far from the preset, on what machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from assay.api.session import Session
from assay.config.load import build_config, plain
from assay.config.schema import RunConfig
from assay.config.stored import differences
from assay.records import Prompt

# They name the run rather than the experiment.
NAMES = ("name", "output_dir", "preset")


def run_facts(session: Session) -> dict[str, Any]:
    """Facts for `measured` in config.yaml; the report's run card shows them."""
    return {
        "verifiers": verifier_facts(session),
        "special_token_ids": sorted(session.tokenizer.all_special_ids),
        "data": {
            "train": len(session.pool.train),
            "heldout": len(session.pool.heldout),
            "train_sha256": data_hash(session.pool.train),
            "heldout_sha256": data_hash(session.pool.heldout),
        },
        "changed": changed(session.config),
        "device": session.policy.device.type,
        "processes": session.ranks.world,
    }


def verifier_facts(session: Session) -> dict[str, Any]:
    """What verifiers found out about this host, such as the sandbox level that was witnessed."""
    functions = session.scorer.functions
    return {function.name: function.fn.facts() for function in functions if hasattr(function.fn, "facts")}


def data_hash(prompts: list[Prompt]) -> str:
    """SHA-256 over what is asked and what is right, in an order of its own: equal data has an equal hash."""
    rows = sorted(json.dumps([prompt.content_key, prompt.row.get("gold")], default=str) for prompt in prompts)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def changed(config: RunConfig) -> dict[str, Any]:
    """Dotted keys whose values differ from the preset's, with the run's values."""
    base = plain(build_config({"preset": config.preset} if config.preset else {}, source="the preset"))
    return {key: new for key, _, new in differences(base, plain(config)) if key not in NAMES}
