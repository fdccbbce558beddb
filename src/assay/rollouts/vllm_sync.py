"""How weights get from the trainer to vLLM servers: adapters or whole weights through a folder, or GPU to GPU."""

from __future__ import annotations

import fcntl
import itertools
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from assay.errors import InputError
from assay.policy.weights import PolicyWeights
from assay.rollouts.vllm_http import SLOW, Server
from assay.rollouts.vllm_options import VllmOptions
from assay.rollouts.vllm_weights import Recorded, Weights, adapter_digests
from assay.rollouts.vllm_worker import ADAPTER_NAME, Digest

MEMORY = Path("/dev/shm")
PREFIX, LOCK = "assay-weights-", "lock"


class Transfer(Protocol):
    """`prepare` once a version, then `send` to each server (from several threads), then `finish`."""

    # The worker's method that reads back what was sent, and the name under which requests find it.
    @property
    def digests(self) -> str: ...

    @property
    def model(self) -> str | None: ...

    def prepare(self, weights: Weights) -> None: ...

    def expected(self) -> Mapping[str, Digest]:
        """What the servers must give back, once `send` is done."""
        ...

    def send(self, server: Server) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


class Folder:
    """A new sub-folder for every version, in a folder that trainer and servers see."""

    def __init__(self, options: VllmOptions) -> None:
        own = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
        parent = Path(options.sync_dir) if options.sync_dir else own
        if not parent.is_dir():
            raise InputError(f"rollout.vllm.sync_dir is {parent}; there is no such folder here")
        if options.sync_dir is None:
            drop_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self.path.chmod(0o755)
        self.lock = (self.path / LOCK).open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.count = itertools.count()
        self.newest: Path | None = None
        self.older: Path | None = None

    def next(self) -> Path:
        self.older, self.newest = self.newest, self.path / f"push-{next(self.count)}"
        self.newest.mkdir()
        return self.newest

    def drop_older(self) -> None:
        if self.older is not None:
            shutil.rmtree(self.older, ignore_errors=True)
            self.older = None

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.lock.close()


def drop_abandoned(parent: Path) -> None:
    """Give back the memory of trainers that were killed: nobody holds the lock of their folders."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            with (folder / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # Held by a living trainer, somebody else's, or just being made.
            continue


class FileTransfer:
    """Whole weights as one safetensors file in the servers' precision."""

    digests = "assay_digests"
    model: str | None = None

    def __init__(self, options: VllmOptions, dtype: torch.dtype, head: Mapping[str, str]) -> None:
        self.folder = Folder(options)
        self.dtype = dtype
        self.head = head
        self.recorded = Recorded((), dtype, head)

    def prepare(self, weights: Weights) -> None:
        from safetensors.torch import save_file

        self.recorded = Recorded(weights, self.dtype, self.head)
        tensors = {name: tensor.contiguous().cpu() for name, tensor in self.recorded}
        save_file(tensors, self.folder.next() / "weights.safetensors")

    def expected(self) -> Mapping[str, Digest]:
        return self.recorded.expected

    def send(self, server: Server) -> None:
        server.rpc("assay_load_file", str(self.folder.newest / "weights.safetensors"))  # type: ignore[operator]

    def finish(self) -> None:
        # Nobody reads the file a second time.
        if self.folder.newest is not None:
            shutil.rmtree(self.folder.newest, ignore_errors=True)

    def close(self) -> None:
        self.folder.close()


class AdapterTransfer:
    """Adapters alone, in peft's format. The newest folder stays: the server's registry names it."""

    digests = "assay_adapter_digests"
    model: str | None = ADAPTER_NAME

    def __init__(self, options: VllmOptions, dtype: torch.dtype) -> None:
        self.folder = Folder(options)
        self.dtype = dtype
        self.digest: Mapping[str, Digest] = {}

    def prepare(self, weights: Weights) -> None:
        if not isinstance(weights, PolicyWeights):
            raise TypeError("this engine serves adapters: push policy.named_full_weights() itself, not its items")
        weights.save_adapters(self.folder.next())
        self.digest = adapter_digests(weights, self.dtype)

    def expected(self) -> Mapping[str, Digest]:
        return self.digest

    def send(self, server: Server) -> None:
        folder = str(self.folder.newest)
        known = [entry["id"] for entry in server.call("GET", "/v1/models")["data"]]
        if ADAPTER_NAME not in known:
            # Once: requests find the adapter by its name. Not in place: a request would load it at every token.
            server.call("POST", "/v1/load_lora_adapter", {"lora_name": ADAPTER_NAME, "lora_path": folder}, timeout=SLOW)
        server.rpc("assay_load_adapter", folder)

    def finish(self) -> None:
        self.folder.drop_older()

    def close(self) -> None:
        self.folder.close()


class NcclTransfer:
    """Whole weights by NCCL broadcast from this GPU, by vLLM's own weight-transfer interface (0.32). Never run."""

    digests = "assay_digests"
    model: str | None = None

    def __init__(self, dtype: torch.dtype, head: Mapping[str, str]) -> None:
        if not torch.cuda.is_available():
            raise InputError("rollout.vllm.weight_sync is nccl, but the trainer has no NVIDIA GPU; use file")
        self.dtype = dtype
        self.head = head
        self.source: Any = None
        self.recorded = Recorded((), dtype, head)
        self.senders: dict[str, Any] = {}

    def prepare(self, weights: Weights) -> None:
        self.recorded = Recorded(weights, self.dtype, self.head)
        if self.source is None:
            self.source = nccl_source(self.dtype)
        self.source.weights = self.recorded

    def expected(self) -> Mapping[str, Digest]:
        return self.recorded.expected

    def send(self, server: Server) -> None:
        from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

        if server.url not in self.senders:
            workers = int(server.call("GET", "/get_world_size")["world_size"])
            self.senders[server.url] = NCCLTrainerWeightTransferEngine.trainer_init(
                NCCLTrainerInitInfo(own_address(server), free_port(), world_size=1 + workers, rank=0),
                client=HTTPVLLMWeightSyncClient(server.url, timeout=SLOW),
                source=self.source,
            )
        self.senders[server.url].send_weights()

    def finish(self) -> None: ...

    def close(self) -> None:
        for sender in self.senders.values():
            sender.shutdown()


def nccl_source(dtype: torch.dtype) -> Any:
    """vLLM's WeightSource over whatever weights are set on it."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Source(WeightSource):
        weights: Weights = ()

        def metadata(self) -> list[Any]:
            return [ParamMeta(name, dtype, tuple(tensor.shape)) for name, tensor in self.weights]

        def __iter__(self) -> Any:
            yield from self.weights

    return Source()


def own_address(server: Server) -> str:
    """This machine's address as the server's machine sees it."""
    host, _, port = server.url.rpartition("//")[2].rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
        return str(connection.getsockname()[0])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def choose_transfer(options: VllmOptions, dtype: torch.dtype, head: Mapping[str, str], *, adapters: bool) -> Transfer:
    """The transfer that the options ask for."""
    if adapters:
        return AdapterTransfer(options, dtype)
    return NcclTransfer(dtype, head) if options.weight_sync == "nccl" else FileTransfer(options, dtype, head)
