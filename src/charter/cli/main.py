"""The `charter` command: verbs, exit codes, and how errors are printed. The work is done elsewhere.

Command modules import what they need inside the command, so that `charter --help` stays quick.
"""

import sys
from typing import NoReturn

import typer

from charter.errors import CharterError

app = typer.Typer(
    name="charter",
    help="Plan, run and account for large-scale alignment training.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def entry() -> NoReturn:
    """Run the command line; turn Charter's errors into one clear message and a documented exit code."""
    try:
        status = app(standalone_mode=False)
    except CharterError as error:
        print(f"error[{error.label}]: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    entry()
