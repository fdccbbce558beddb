"""`assay view RUN`: a local page over a run's rollouts."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from assay.errors import InputError


def view(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run directory; also TRL's output directory "
            "(completions/*.parquet) or a folder of verl's rollout JSONL.",
        ),
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 8712,
    host: Annotated[str, typer.Option(help="Address to listen on. Anyone who reaches it can read the rollouts.")] = (
        "127.0.0.1"
    ),
    verifier: Annotated[
        str,
        typer.Option(
            help="Re-score with this reward: a built-in's name, FILE.py:FUNCTION, "
            "package.module:function. The file is read again at each click."
        ),
    ] = "",
    tokenizer: Annotated[str, typer.Option(help="Folder or hub id of the tokenizer, to show tokens as text.")] = "",
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Browse a run's rollouts: groups side by side, filters, search, the same prompt through time, token heat maps,
    re-scoring with an edited verifier, export of marked rows. Reads only; stop it with Ctrl-C."""
    from assay.monitoring.sources import open_run
    from assay.monitoring.viewer.rescore import Rescorer
    from assay.monitoring.viewer.server import RolloutServer

    run = open_run(path)
    decode = load_decoder(tokenizer) if tokenizer else None
    server = RolloutServer(run, host, port, decode, Rescorer(verifier) if verifier else None)
    print(f"{path} at {server.url} (Ctrl-C stops)", file=sys.stderr)
    if server.open_to_others:
        print("Anyone who reaches this address can read the rollouts.", file=sys.stderr)
    if open_browser:
        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        server.server_close()


def load_decoder(name: str) -> Callable[[list[int]], list[str]]:
    """Token ids to one text each."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise InputError(f"--tokenizer {name!r} cannot be loaded: {str(error).splitlines()[0]}") from None
    return lambda ids: [str(tokenizer.decode([token])) for token in ids]
