"""The page's server: standard library, loopback unless told otherwise, JSON in and out, nothing written."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from assay.errors import InputError
from assay.monitoring.sources import Run
from assay.monitoring.viewer.diff import diff_completions
from assay.monitoring.viewer.query import Filter, find_groups, prompt_history, tokens_of
from assay.monitoring.viewer.rescore import Rescorer

ASSETS = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}
HEADERS = {
    # Completions are hostile: only this server's own script may run, and nothing may be loaded from elsewhere.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MAX_BODY = 4 * 2**20


class RolloutServer(ThreadingHTTPServer):
    """Serves one run's rollouts. `decode` turns token ids into text where a tokenizer is at hand; `rescorer` re-judges
    with the verifier that was named on the command line, and only that one: a page must not choose code to run."""

    daemon_threads = True

    def __init__(
        self,
        run: Run,
        host: str = "127.0.0.1",
        port: int = 8712,
        decode: Callable[[list[int]], list[str]] | None = None,
        rescorer: Rescorer | None = None,
    ) -> None:
        if run.rollouts is None:
            raise InputError(f"{run.path} has no rollouts to look at")
        self.run, self.source, self.decode, self.rescorer = run, run.rollouts, decode, rescorer
        self.open_to_others = not _is_loopback(host)
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; give another --port") from None

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def overview(self) -> dict[str, Any]:
        steps = self.source.steps()
        newest = self.source.read(steps[-1], ("task", "judgements")) if steps else []
        history = self.run.history
        return {
            "name": self.run.path.name,
            "steps": steps,
            "rows_in_newest": len(newest),
            "tasks": sorted({str(row["task"]) for row in newest}),
            "functions": list(dict.fromkeys(item["name"] for row in newest for item in row["judgements"] or ())),
            "rescorer": self.rescorer.spec if self.rescorer else None,
            "tokenizer": self.decode is not None,
            "reward": [[int(at), float(value)] for at, value in zip(*history.series("reward"))][-2000:],
        }


class Handler(BaseHTTPRequestHandler):
    server: RolloutServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        if not self._from_here():
            return
        if place.path in ASSETS:
            name, kind = ASSETS[place.path]
            self._send(HTTPStatus.OK, (files("assay.monitoring.viewer") / name).read_bytes(), kind)
            return
        query = {name: values[-1] for name, values in parse_qs(place.query).items()}
        self._answer(lambda: self._get(place.path, query))

    def do_POST(self) -> None:
        if not self._from_here():
            return
        # A page of another site can send forms and plain text, but not JSON without asking first.
        if not self.headers.get("Content-Type", "").startswith("application/json"):
            self._json(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, {"error": "send application/json"})
            return
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            self._json(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": "the request is too large"})
            return
        raw = self.rfile.read(length)
        self._answer(lambda: self._post(urlsplit(self.path).path, json.loads(raw)))

    def _get(self, path: str, query: dict[str, str]) -> Any:
        source = self.server.source
        if path == "/api/run":
            return self.server.overview()
        if path == "/api/groups":
            before = query.get("before")
            return find_groups(
                source, _filter(query), int(before) if before else None, offset=int(query.get("offset") or 0)
            )
        if path == "/api/prompt":
            return prompt_history(source, query["key"])
        if path == "/api/diff":
            return diff_completions(source, query["left"], query["right"])
        if path == "/api/tokens":
            found = tokens_of(source, *(int(query[name]) for name in ("step", "group", "sample")))
            decode = self.server.decode
            return {**found, "texts": decode(found["token_ids"]) if decode else None}
        raise LookupError(path)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/api/rescore":
            if self.server.rescorer is None:
                raise InputError(
                    "no verifier to re-score with; start with --verifier FILE.py:FUNCTION or a built-in's name"
                )
            return self.server.rescorer.rescore(self.server.source, int(body["step"]), int(body["group"]))
        if path == "/api/export":
            return {"jsonl": export(self.server, [str(item) for item in body["ids"]])}
        raise LookupError(path)

    def _answer(self, produce: Callable[[], Any]) -> None:
        try:
            self._json(HTTPStatus.OK, produce())
        except LookupError as error:
            self._json(HTTPStatus.NOT_FOUND, {"error": f"not found: {error}"})
        except (InputError, ValueError, TypeError) as error:
            self._json(HTTPStatus.BAD_REQUEST, {"error": str(error)})

    def _from_here(self) -> bool:
        """Refuse names that are not ours (a rebound DNS name) and requests that another site's page makes."""
        host = re.sub(r":\d+$", "", self.headers.get("Host", "")).strip("[]")
        origin = self.headers.get("Origin")
        same = origin is None or urlsplit(origin).netloc == self.headers.get("Host")
        known = self.server.open_to_others or host == "localhost" or _is_loopback(host)
        if not (same and known):
            self._json(HTTPStatus.FORBIDDEN, {"error": "this page belongs to this machine"})
        return same and known

    def _json(self, status: HTTPStatus, payload: Any) -> None:
        self._send(status, json.dumps(payload, allow_nan=False).encode(), "application/json; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the terminal belongs to the person."""


def export(server: RolloutServer, ids: list[str]) -> str:
    """Marked completions ("step/group/sample") as JSON lines: prompt, completion, gold, reward, correct."""
    wanted: dict[int, set[tuple[int, int]]] = {}
    for name in ids:
        step, group, sample = (int(part) for part in name.split("/"))
        wanted.setdefault(step, set()).add((group, sample))
    lines = []
    for step in sorted(wanted):
        for row in server.source.read(step):
            if (row["group"], row["sample"]) in wanted[step]:
                prompt = json.loads(row["prompt"]) if row["prompt_format"] == "messages" else row["prompt"]
                completion = json.loads(row["messages"]) if row["messages"] else row["text"]
                kept = {name: row[name] for name in ("gold", "reward", "correct", "step", "group", "sample")}
                lines.append(json.dumps({"prompt": prompt, "completion": completion, **kept}, ensure_ascii=False))
    return "\n".join(lines) + ("\n" if lines else "")


def _filter(query: dict[str, str]) -> Filter:
    def number(name: str) -> float | None:
        return float(query[name]) if query.get(name) else None

    return Filter(
        step=int(query["step"]) if query.get("step") else None,
        query=query.get("q", ""),
        mixed="mixed" in query,
        truncated="truncated" in query,
        flagged="flagged" in query,
        outcome=query.get("outcome", ""),
        task=query.get("task", ""),
        min_reward=number("min"),
        max_reward=number("max"),
        sort=query.get("sort", "stored"),
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
