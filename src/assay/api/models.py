"""The better model on disk: saving it into a run, finding it there, putting it back into a policy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import InputError
from assay.policy import Policy

if TYPE_CHECKING:
    from assay.api.session import Session

ADAPTER = "adapter_config.json"


def save_model(policy: Policy, tokenizer: Any, folder: Path, *, merged: bool = False) -> None:
    """Adapters (or all weights, and always where `merged`) with the tokenizer; transformers and vLLM load the folder.

    Written aside and renamed, so that a reader finds the old model or the new one.
    """
    aside = folder.with_name(f".{folder.name}.tmp{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    if policy.has_adapters and not merged:
        policy.save_adapter(aside)
    else:
        policy.save_merged(aside)
    tokenizer.save_pretrained(aside)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(aside, folder)


def trained_model(run: Path, which: str | None = None) -> Path:
    """A run's model folder: `best` or `last`; by default the best, or the last where none was better than the start."""
    names = [which] if which else ["best", "last"]
    for name in names:
        if (run / "model" / name).is_dir():
            return run / "model" / name
    if which and (run / "model").is_dir():
        have = ", ".join(sorted(path.name for path in (run / "model").iterdir() if not path.name.startswith(".")))
        raise InputError(f"{run} has no model {which!r}; it has {have}")
    raise InputError(f"{run} has no trained model yet; train it first (`assay train {run}` goes on where it stopped)")


def load_trained(session: Session, folder: Path) -> None:
    """Put a run's trained weights into the session's policy, and into its engine where that exists already."""
    policy = session.policy
    if (folder / ADAPTER).exists():
        import peft

        peft.set_peft_model_state_dict(policy.model, peft.load_peft_weights(str(folder), device="cpu"))
    else:
        import transformers

        trained = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        policy.transformer.load_state_dict(trained.state_dict())
    if "engine" in session.__dict__:
        session.engine.push(policy.named_full_weights(), 1)


def disagreement(session: Session, folder: Path, run: Path, rows: int = 16, longest: int = 512) -> float:
    """Share of positions at which the model in `folder` and the session's policy expect another next token.

    Over prompts and answers of the run's newest rollouts, at most `longest` tokens of each; where the run kept none,
    over a sentence.
    """
    import torch
    import transformers

    from assay.monitoring.store import RolloutStore

    store = RolloutStore(run / "rollouts")
    kept = store.read(store.steps()[-1], ("prompt_token_ids", "token_ids"))[:rows] if store.steps() else []
    texts = [[*row["prompt_token_ids"], *row["token_ids"]][:longest] for row in kept]
    texts = texts or [session.tokenizer("The exported model should expect the same next word.")["input_ids"]]
    policy = session.policy.eval()
    exported: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    exported.to(policy.device).eval()
    different = 0
    for text in texts:
        ids = torch.tensor([text], device=policy.device)
        with torch.no_grad():
            own, other = (model(input_ids=ids).logits.argmax(-1) for model in (policy.model, exported))
        different += int((own != other).sum())
    return different / sum(map(len, texts))
