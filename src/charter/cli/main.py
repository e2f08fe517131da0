"""The `charter` command: verbs, exit codes, and how errors are printed. The work is done elsewhere.

Command modules import what they need inside the command, so that `charter --help` stays quick.
"""

import os
import sys
from typing import Annotated, NoReturn

import typer

from charter.cli.accept import accept
from charter.cli.approve import approve
from charter.cli.calibrate import calibrate
from charter.cli.checkpoints import checkpoints_app
from charter.cli.compare import compare
from charter.cli.constitution import constitution_app
from charter.cli.cost import cost_app
from charter.cli.data import data_app
from charter.cli.doctor import doctor
from charter.cli.env import env
from charter.cli.export import export
from charter.cli.gpus import gpus_app
from charter.cli.init import init_command
from charter.cli.logs import logs
from charter.cli.mem import mem
from charter.cli.plan import plan
from charter.cli.prices import prices_app
from charter.cli.report import report
from charter.cli.run import resume, run
from charter.cli.scale import scale_app
from charter.cli.schema import schema_command
from charter.cli.serve import serve
from charter.cli.simulate import simulate
from charter.cli.status import status
from charter.cli.stop import stop
from charter.cli.validate import validate
from charter.cli.validate_config import check_command
from charter.errors import CharterError

app = typer.Typer(
    name="charter",
    help="Plan, run and account for large-scale alignment training.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"charter {version('charter-plan')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Plan, run and account for large-scale alignment training."""


app.command("init")(init_command)
app.command("plan")(plan)
app.command("compare")(compare)
app.command("mem")(mem)
app.add_typer(gpus_app, name="gpus")
app.add_typer(prices_app, name="prices")
app.command("check")(check_command)
app.command("validate")(validate)
app.command("calibrate")(calibrate)
app.add_typer(scale_app, name="scale")
app.command("simulate")(simulate)
app.command("schema")(schema_command)
app.command("run")(run)
app.command("resume")(resume)
app.command("status")(status)
app.command("logs")(logs)
app.command("stop")(stop)
app.add_typer(constitution_app, name="constitution")
app.add_typer(cost_app, name="cost")
app.command("report")(report)
app.command("export")(export)
app.command("serve")(serve)
app.add_typer(checkpoints_app, name="ckpt")
app.add_typer(checkpoints_app, name="checkpoints", hidden=True)
app.command("accept")(accept)
app.command("approve")(approve)
app.add_typer(data_app, name="data")
app.command("doctor")(doctor)
app.command("env")(env)


def entry() -> NoReturn:
    """Run the command line; turn every error into one clear message and a documented exit code."""
    try:
        app()
    except CharterError as error:
        print(f"error[{error.label}]: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get("CHARTER_DEBUG"):
            raise
        print(f"error[internal]: {type(error).__name__}: {error}", file=sys.stderr)
        print("  this is a defect of Charter; CHARTER_DEBUG=1 shows where it happened", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    entry()
