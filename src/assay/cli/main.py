"""The `assay` command: a table of commands, each a thin module, and the one place where errors become exit statuses."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from assay.errors import InputError, RunError

# command -> (module:function, its line in `assay --help`). A module loads when its command runs: --help is instant.
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("assay.cli.train:train", "Train; resumes by itself if the run directory exists."),
    "sft": ("assay.cli.sft:sft", "Fine-tune on answers: a cold start, or the best of a run's own rollouts."),
    "init": ("assay.cli.init:init", "A recipe from a dataset."),
    "check": ("assay.cli.check:check", "Preflight: would this run learn? Before spending a GPU-hour."),
    "eval": ("assay.cli.evaluate:evaluate", "Held-out accuracy of a base model, or of a run before and after."),
    "passk": ("assay.cli.passk:passk", "Unbiased pass@k and pass^k with bootstrap bands; base against trained."),
    "filter": ("assay.cli.filter:filter_prompts", "Pass rates of a dataset under a model; keep 0 < p < 1."),
    "grade": ("assay.cli.grade:grade", "Mark rows of completion and gold; rows with outcome and reward come back."),
    "scan": ("assay.cli.scan:scan", "Tampering patterns in programs."),
    "audit": ("assay.cli.audit:audit", "Does the verifier pay for gold, and for nothing else?"),
    "sandbox": ("assay.cli.sandbox:app", "What this host enforces on untrusted programs, tried for real."),
    "doctor": ("assay.cli.doctor:doctor", "What is wrong with this run, why, the evidence, the key to change."),
    "report": ("assay.cli.report:report", "One self-contained HTML file about a run."),
    "view": ("assay.cli.view:view", "Rollouts browser: a local page over a run's completions."),
    "compare": ("assay.cli.compare:compare", "Seeds and ablations side by side, with paired intervals."),
    "sweep": ("assay.cli.sweep:sweep", "One recipe under several settings and seeds, then compared."),
    "fit": ("assay.cli.fit:fit", "Sigmoid compute fit: where runs are heading, and whether that is known."),
    "serve": ("assay.cli.serve:serve", "vLLM servers for a recipe whose rollout.engine is vllm-server."),
    "export": ("assay.cli.export:export", "The better model itself, out of a run directory."),
    "try": ("assay.cli.attempt:attempt", "What the model said before training, and what it says now."),
    "explain": ("assay.cli.explain:explain", "Per-token weights of an objective on given lengths and rewards."),
}


class LazyGroup(TyperGroup):
    """Loads a command's module only when that command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        target, help_line = COMMANDS[cmd_name]
        module, _, attribute = target.partition(":")
        loaded = getattr(importlib.import_module(module), attribute)
        if isinstance(loaded, typer.Typer):
            command = typer.main.get_command(loaded)
        else:
            single = typer.Typer(add_completion=False)
            single.command(name=cmd_name)(loaded)
            command = typer.main.get_command(single)
        command.name = cmd_name
        command.short_help = help_line
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The overview, from the table alone."""
        width = max(map(len, COMMANDS))
        lines = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
        typer.echo(f"{OVERVIEW}\n\nCommands:\n{lines}\n\n`assay COMMAND --help` explains one.")


OVERVIEW = """\
assay: reinforcement learning with verifiable rewards, and the instruments to trust it.

Start with `assay train recipes/quickstart.yaml`: a small language model learns on this machine in minutes.
--debug before the command prints a traceback where an error would be one line."""

app = typer.Typer(cls=LazyGroup, add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=False)
def root(debug: bool = typer.Option(False, "--debug", help="Print a traceback on errors.")) -> None:
    if debug:
        os.environ["ASSAY_DEBUG"] = "1"


def main() -> None:
    """Entry point: exit status 0 fine, 1 found something wrong, 2 could not run."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app()
    except (InputError, RunError) as error:
        if os.environ.get("ASSAY_DEBUG"):
            raise
        print(f"assay: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
