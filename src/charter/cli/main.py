"""The `charter` command: verbs, exit codes, and how errors are printed. The work is done elsewhere.

Only the module of the verb that is asked for is imported, and command modules import what they need inside the
command: what a command takes at least is the time of its imports.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from charter.errors import CharterError, missing_extra

if TYPE_CHECKING:
    app: typer.Typer
    """The command line with every verb; made when it is asked for."""

VERBS: Mapping[str, str] = {
    "init": "init.init_command",
    "plan": "plan.plan",
    "compare": "compare.compare",
    "mem": "mem.mem",
    "gpus": "gpus.gpus_app",
    "prices": "prices.prices_app",
    "check": "validate_config.check_command",
    "validate": "validate.validate",
    "calibrate": "calibrate.calibrate",
    "scale": "scale.scale_app",
    "simulate": "simulate.simulate",
    "ask": "ask.ask",
    "schema": "schema.schema_command",
    "run": "run.run",
    "resume": "run.resume",
    "submit": "submit.submit",
    "status": "status.status",
    "logs": "logs.logs",
    "samples": "samples.samples",
    "track": "track.track_app",
    "stop": "stop.stop",
    "constitution": "constitution.constitution_app",
    "cost": "cost.cost_app",
    "report": "report.report",
    "ui": "ui.ui",
    "export": "export.export",
    "import": "import_run.import_run",
    "serve": "serve.serve",
    "ckpt": "checkpoints.checkpoints_app",
    "checkpoints": "checkpoints.checkpoints_app",
    "accept": "accept.accept",
    "approve": "approve.approve",
    "data": "data.data_app",
    "doctor": "doctor.doctor",
    "env": "env.env",
}
"""The module in this package and the command or group in it, by the word that calls it."""
HIDDEN = frozenset({"checkpoints"})
"""Other names of a verb, which help does not list."""


def verbs_asked(words: Sequence[str]) -> tuple[str, ...]:
    """The verbs that a command line may need: its own where it begins with one, else all, for help and for slips."""
    return tuple(words[:1]) if words and words[0] in VERBS else tuple(VERBS)


def make_app(verbs: Iterable[str] = tuple(VERBS)) -> typer.Typer:
    """The command line with some of its verbs."""
    made = typer.Typer(
        name="charter",
        help="Plan, run and account for large-scale alignment training.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options)
    for verb in verbs:
        module, _, name = VERBS[verb].partition(".")
        command = getattr(import_module(f"charter.cli.{module}"), name)
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=verb, hidden=verb in HIDDEN)
        else:
            made.command(verb, hidden=verb in HIDDEN)(command)
    return made


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = make_app()
    return globals()["app"]


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"charter {version('charter-plan')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Plan, run and account for large-scale alignment training."""


def _end_with(error: CharterError) -> NoReturn:
    print(f"error[{error.label}]: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


def entry() -> NoReturn:
    """Run the command line; turn every error into one clear message and a documented exit code."""
    try:
        make_app(verbs_asked(sys.argv[1:]))()
    except CharterError as error:
        _end_with(error)
    except Exception as error:
        if os.environ.get("CHARTER_DEBUG"):
            raise
        # The core installs without torch, SQLAlchemy and the rest: a verb that needs one names what brings it.
        if isinstance(error, ModuleNotFoundError) and (extra := missing_extra(error)):
            _end_with(extra)
        print(f"error[internal]: {type(error).__name__}: {error}", file=sys.stderr)
        print("  this is a defect of Charter; CHARTER_DEBUG=1 shows where it happened", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    entry()
