"""One `vllm serve` process, by its URL: calls, and what is wrong when they fail."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import urllib3

from assay.errors import InputError, RunError
from assay.policy.model import Policy
from assay.records import Completion
from assay.rollouts.vllm_options import VllmOptions, check_version
from assay.rollouts.vllm_requests import completion

# Seconds for calls that only look or set a number.
QUICK = 30.0
# Seconds for an update of all weights, or for a pause that lets a step finish.
SLOW = 1800.0
START_HINT = "start it with `assay serve RECIPE`, or look at its log"


class ServerError(Exception):
    """A call failed; `status` is the HTTP status, None where there was no answer."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """Whether the server answered that the request is wrong: asking again would not help."""
        return self.status is not None and 400 <= self.status < 500


class Server:
    """Blocking calls to one server, safe from several threads at a time."""

    def __init__(self, url: str, options: VllmOptions) -> None:
        self.url = url.rstrip("/")
        self.options = options
        # Completions being written here; the engine keeps the count.
        self.load = 0
        self.fault: str | None = None
        self.facts: dict[str, Any] = {}
        self.pool = urllib3.PoolManager(maxsize=512, block=False, retries=False)

    @property
    def is_alive(self) -> bool:
        return self.fault is None

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = QUICK
    ) -> dict[str, Any]:
        """The JSON object of an answer; `timeout` counts seconds of silence, None is patience without end.

        Raises:
            ServerError: if there is no answer, or one that is no success.
        """
        try:
            response = self.pool.request(
                method,
                f"{self.url}{path}",
                body=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                timeout=urllib3.Timeout(connect=min(QUICK, timeout or QUICK), read=timeout),
            )
        except urllib3.exceptions.HTTPError as error:
            raise ServerError(f"{self.url}{path}: {reason(error)}") from error
        text = response.data.decode(errors="replace")
        if response.status != 200:
            raise ServerError(f"{self.url}{path}: HTTP {response.status}: {told(text)}", status=response.status)
        try:
            answer = json.loads(text) if text.strip() else {}
        except ValueError:
            answer = {"text": text}
        return answer if isinstance(answer, dict) else {"items": answer}

    def rpc(self, method: str, *args: Any, timeout: float = SLOW) -> Any:
        """What the first worker answers to a method of `PolicyWorker`."""
        answer = self.call("POST", "/collective_rpc", {"method": method, "args": list(args)}, timeout=timeout)
        results = answer.get("results") or [None]
        return results[0]

    def is_healthy(self, timeout: float, tries: int = 1) -> bool:
        """Whether the server answers its health check within `timeout` seconds, asked `tries` times on the way."""
        each, stale = timeout / tries, 3
        while tries > 0:
            begin = time.monotonic()
            try:
                self.call("GET", "/health", timeout=each)
            except ServerError as error:
                # Servers close connections that were idle for some seconds, just as a call may take one up again.
                if stale and isinstance(error.__cause__, urllib3.exceptions.ProtocolError):
                    stale -= 1
                    continue
                # No connection and an error answer are certain; silence may be a busy machine.
                if error.status is not None or time.monotonic() - begin < 0.5 * each:
                    return False
                tries -= 1
                continue
            return True
        return False

    def wait_until_ready(self, tell: Callable[[str], None]) -> None:
        """Return when the server answers its health check and is one that assay can drive; fills in `facts`.

        Raises:
            RunError: if it does not answer within `start_timeout_s`.
            InputError: if it is another version, or was started without the switches that training needs.
        """
        begin = time.monotonic()
        told_once, trouble = False, ""
        while True:
            try:
                self.call("GET", "/health", timeout=5.0)
                break
            except ServerError as error:
                trouble = str(error)
            if time.monotonic() - begin > self.options.start_timeout_s:
                raise RunError(
                    f"the vLLM server {self.url} did not become healthy within {self.options.start_timeout_s:g} s "
                    f"({trouble}); {START_HINT}"
                )
            if not told_once and time.monotonic() - begin > 2:
                tell(f"Waiting for the vLLM server {self.url} ...")
                told_once = True
            time.sleep(0.5)
        check_version(str(self.call("GET", "/version").get("version", "?")), self.url)
        self.facts = self._ask_facts()

    def _ask_facts(self) -> dict[str, Any]:
        try:
            facts = self.rpc("assay_facts", timeout=QUICK)
        except ServerError as error:
            raise InputError(
                f"the vLLM server {self.url} cannot be given weights ({error}); it needs VLLM_SERVER_DEV_MODE=1 and "
                "--worker-extension-cls assay.rollouts.vllm_worker.PolicyWorker, which `assay serve RECIPE` sets"
            ) from error
        if facts["logprobs_mode"] != "processed_logprobs":
            raise InputError(
                f"the vLLM server {self.url} reports {facts['logprobs_mode']}, which are not the probabilities that it "
                "samples from; start it with --logprobs-mode processed_logprobs, or by `assay serve RECIPE`"
            )
        return facts


def reason(error: Exception) -> str:
    """The innermost cause in words: `connection refused`, `read timed out`, ..."""
    inner: BaseException = error
    while (deeper := inner.__cause__ or inner.__context__ or getattr(inner, "reason", None)) is not None:
        if not isinstance(deeper, BaseException):
            break
        inner = deeper
    text = " ".join(str(inner).split()) or type(inner).__name__
    return text.rpartition("): ")[2][:200] or text[:200]


def told(text: str) -> str:
    """The message of an error answer."""
    try:
        content = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:300]
    found = content.get("error", content.get("detail", content)) if isinstance(content, dict) else content
    message = found.get("message", found) if isinstance(found, dict) else found
    return " ".join(str(message).split())[:300]


def check_model(server: Server, policy: Policy, adapters: bool, dtype: str) -> None:
    """Raise InputError if a server cannot hold this policy."""
    facts, config = server.facts, policy.config
    for name, own in (
        ("vocab_size", config.vocab_size),
        ("hidden_size", config.hidden_size),
        ("layers", config.num_hidden_layers),
    ):
        if facts[name] != own:
            raise InputError(
                f"the vLLM server {server.url} serves {facts['model']}, whose {name} is {facts[name]}, not {own} as in "
                f"{policy.options.path}; start it with `assay serve` on the same recipe"
            )
    if facts["dtype"] != dtype:
        raise InputError(
            f"the vLLM servers compute in different precisions: {server.url} in {facts['dtype']}, not {dtype}"
        )
    if adapters and facts["max_lora_rank"] < policy.options.lora_rank:
        raise InputError(
            f"the vLLM server {server.url} takes adapters of rank {facts['max_lora_rank']} at most, and "
            f"model.lora_rank is {policy.options.lora_rank}; start it with `assay serve` on the same recipe, or set "
            "rollout.vllm.adapters=false"
        )


def made(answer: dict[str, Any]) -> list[Completion]:
    """The completions in a server's answer, in order."""
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    if any(choice["finish_reason"] not in ("stop", "length") for choice in choices):
        raise ServerError(f"a request was ended from outside ({choices[0]['finish_reason']})")
    return [
        completion(
            choice["token_ids"],
            [entry["logprob"] for entry in choice["logprobs"]["content"]],
            choice["finish_reason"],
            [(span["start"], span["version"]) for span in choice["weight_versions"] or ()],
        )
        for choice in choices
    ]
