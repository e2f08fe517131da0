"""The `charter` command: verbs, exit codes, and how errors are printed. The work is done elsewhere.

Only the module of the verb that is called is imported, and command modules import what they need inside the
command: what a command takes at least is the time of its imports.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from charter.cli.common import UNTIL_THE_END, WORDS
from charter.errors import CharterError, UsageError, missing_extra, not_utf_8, refused
from charter.redaction import hide_output, without_secrets

COMMANDS: Mapping[str, str] = {
    "init": "init.init_command",
    "plan": "plan.plan",
    "plan ask": "ask.ask",
    "plan compare": "compare.compare",
    "plan mem": "mem.mem",
    "plan scale": "scale.scale_app",
    "plan simulate": "simulate.simulate",
    "check": "check.check_command",
    "check environment": "check.doctor",
    "check versions": "check.env",
    "check schema": "check.schema_command",
    "run": "run.run",
    "run resume": "run.resume",
    "run serve": "run.serve",
    "run again": "run.again",
    "submit": "run.submit",
    "status": "status.status",
    "status actions": "status.actions",
    "status tag": "status.tag",
    "status track": "status.track_app",
    "logs": "status.logs",
    "approve": "approve.approve",
    "stop": "approve.stop",
    "ui": "ui.ui",
    "report": "report.report",
    "report samples": "report.samples",
    "cost": "cost.cost_app",
    "data": "data.data_app",
    "data constitution": "constitution.constitution_app",
    "artifacts": "",
    "artifacts checkpoints": "checkpoints.checkpoints_app",
    "artifacts export": "export.export",
    "artifacts fetch": "export.fetch",
    "artifacts import": "import_run.import_run",
    "artifacts accept": "approve.accept",
    "catalog": "",
    "catalog gpus": "gpus.gpus_app",
    "catalog models": "gpus.models",
    "catalog prices": "prices.prices_app",
    "validate": "validate.validate",
    "validate calibrate": "calibrate.calibrate",
    "validate convert": "calibrate.convert",
    "validate share": "calibrate.share",
}
"""The module in this package and the command or group in it, by the words that call it; a group of nothing else has
none."""
GUESSED: Mapping[str, str] = {
    "models": "catalog models",
    "estimate": "plan",
    "train": "run",
    "start": "run",
    "up": "run",
    "validate-config": "check",
    "lint": "check",
    "tail": "logs",
    "launch": "submit",
    "list": "status",
    "download": "artifacts fetch",
    "pull": "artifacts fetch",
    "ls": "status",
    "ps": "status",
    "cancel": "stop",
    "kill": "stop",
    "dashboard": "ui",
    "bill": "cost",
    "price": "catalog prices",
    "version": "--version",
}
"""First words of other tools, answered with the verb here."""
SHORT: Mapping[str, str] = {"ask": "plan ask", "samples": "report samples"}
"""What people type often, in one word."""
OLD: Mapping[str, str] = {
    "compare": "plan compare",
    "mem": "plan mem",
    "scale": "plan scale",
    "simulate": "plan simulate",
    "doctor": "check environment",
    "env": "check versions",
    "schema": "check schema",
    "resume": "run resume",
    "serve": "run serve",
    "track": "status track",
    "constitution": "data constitution",
    "ckpt": "artifacts checkpoints",
    "checkpoints": "artifacts checkpoints",
    "export": "artifacts export",
    "import": "artifacts import",
    "accept": "artifacts accept",
    "gpus": "catalog gpus",
    "prices": "catalog prices",
    "calibrate": "validate calibrate",
}
"""Spellings of 0.1, which still work and name the new one; 0.2 drops them."""
SCREEN: Mapping[str, Mapping[str, str]] = {
    "Before a run": {
        "init": "create a project: charter.yaml, constitution, data",
        "plan": "memory, time and cost; a file is not needed: charter plan sft 8B --tokens 100M",
        "check": "find every error of charter.yaml; check environment looks at this machine",
        "catalog": "accelerators, models and prices, each with its source",
    },
    "The run": {
        "run": "run or resume a project, here or on a scheduler",
        "submit": "send a run to Slurm, Ray, Kubernetes or a cloud, and let it go on there",
        "status": "where every stage is, how far, and why",
        "logs": "the log of a stage",
        "approve": "read samples of what a waiting stage reads, and let it start",
        "stop": "stop at the next safe point, after a checkpoint",
        "ui": "runs, plans, costs and samples in a browser",
    },
    "Afterwards": {
        "report": "results, plan against actual; report samples prints what the models said",
        "cost": "what was spent, what was lost, and the forecast",
        "data": "check, measure and convert data sets; the constitution",
        "artifacts": "checkpoints; fetch models and data, export and import models and runs",
        "validate": "the planner against measured runs; calibrate it on yours",
    },
}
"""Top-level verbs as `charter --help` shows them, in the order in which a project meets them."""


class Verbs(TyperGroup):
    """The verbs, each imported when it is called; `charter plan mem` is a verb of two words."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the top-level verbs in the order of the screen."""
        return [verb for verbs in SCREEN.values() for verb in verbs]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command or group of a verb in its full spelling; None for what is none."""
        return load(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the longest verb that the line begins with, in its present, short or earlier spelling."""
        first = args[0]
        if first == "help" and not ctx.resilient_parsing:
            if len(args) > 1:
                return self.resolve_command(ctx, [*args[1:], "--help"])
            print(ctx.get_help())
            ctx.exit()
        if first in OLD and not ctx.resilient_parsing:
            print(f'note: "charter {first}" is now "charter {OLD[first]}"', file=sys.stderr)
        words = [*(SHORT.get(first) or OLD.get(first) or first).split(), *args[1:]]
        _refuse_question(words)
        for length in (2, 1):
            name = " ".join(words[:length])
            if name in COMMANDS and len(words) >= length:
                command = self.get_command(ctx, name)
                below = [other.removeprefix(f"{name} ") for other in COMMANDS if other.startswith(f"{name} ")]
                return name, command, with_directory(command, words[length:], below)
        if first.startswith("-"):
            return super().resolve_command(ctx, args)
        near = (
            [GUESSED[first]] if first in GUESSED else get_close_matches(first, [*self.list_commands(ctx), *SHORT, *OLD])
        )
        if not near:
            from charter.plan.ask import kind_of

            near = [] if kind_of(first) is None else [" ".join(["plan", *args])]
        meant = (
            f"; did you mean {' or '.join(SHORT.get(word) or OLD.get(word) or word for word in near)}?" if near else ""
        )
        raise UsageError(f"charter has no command {first!r}{meant}")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what stands before the verb."""
        ctx.meta[WORDS] = tuple(args)
        with _slips_told(args):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; an option of another tool is answered with the key of charter.yaml that it stands for."""
        with _slips_told(ctx.meta[WORDS]), UNTIL_THE_END:
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the screen: what there is, in the order in which it is needed."""
        formatter.write("Usage: charter COMMAND [ARGS]...    charter COMMAND --help explains one\n\n")
        formatter.write("Plan, run and account for large-scale alignment training.\n")
        for title, verbs in SCREEN.items():
            formatter.write(f"\n{title}\n")
            for verb, summary in verbs.items():
                formatter.write(f"  {verb:<10} {summary}\n")
        formatter.write("\nNew here: charter init demo --template cai-smoke && charter run demo\n")
        formatter.write("Options: --version, --install-completion, --show-completion, -h or --help\n")


def _refuse_question(words: Sequence[str]) -> None:
    """Raise a `UsageError` where a kind of stage is to be run that no file describes."""
    if words[0] not in ("run", "submit") or len(words) < 3 or Path(words[1]).exists():
        return
    from charter.plan.ask import kind_of

    if kind_of(words[1]) is not None:
        raise UsageError(
            f"charter {words[0]} takes the directory of a project; for one stage without a file, first charter plan "
            f"{' '.join(words[1:])} --save charter.yaml"
        )


def with_directory(command: Any, words: list[str], others: Sequence[str] = ()) -> list[str]:
    """Put -C before a project that was named without it, for a command that takes no other word.

    It need not be there, if it is not nearly one of `others`, which are commands too.

    >>> import click
    >>> status = click.Command("status", params=[click.Option(["-C"]), click.Option(["--watch"], is_flag=True)])
    >>> with_directory(status, ["--watch", "."]), with_directory(status, ["-C", "."])
    (['--watch', '-C', '.'], ['-C', '.'])
    >>> with_directory(status, ["nowhere"]), with_directory(status, ["sampels"], ["samples"])
    (['-C', 'nowhere'], ['sampels'])
    """
    below = getattr(command, "commands", {})
    if words and words[0] in below:
        return [words[0], *with_directory(below[words[0]], words[1:])]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    takes_words = len(options) < len(command.params)
    if takes_words or not any("-C" in option.opts for option in options):
        return words
    with_value = {name for option in options if not option.is_flag for name in option.opts}
    for index, word in enumerate(words):
        is_value = index > 0 and words[index - 1] in with_value
        if is_value or word.startswith("-"):
            continue
        if Path(word).exists() or not get_close_matches(word, [*below, *others], n=1):
            return [*words[:index], "-C", *words[index:]]
    return words


TYPED = {
    r"Input should be a valid integer.*": "give a whole number",
    r"Input should be a valid number.*": "give a number",
    r"Input should be greater than or equal to ": "give at least ",
    r"Input should be less than or equal to ": "give at most ",
    r"\. Did you mean": "; did you mean",
    r"extra argument\(s\)": "extra word",
    r"requires an argument": "needs a value",
    r"[Mm]issing argument 'stage'": "name a stage, as charter status lists them",
    r"[Mm]issing option '--accelerator'.*": "say on which accelerators: --on H100:8",
}
"""What the parser of words says, and what Charter does."""
INSTEAD: Mapping[tuple[str, str], str] = {
    **{
        (f"charter {verb}", option): f"name the file itself, charter {verb} charter.yaml"
        for verb in ("run", "plan", "check")
        for option in ("--config", "--file", "-f", "-c")
    },
    ("charter run", "--resume"): "charter run goes on from the last checkpoints by itself",
    **{("charter submit", option): "charter submit asks no question" for option in ("--yes", "-y")},
    ("charter run", "--force"): "charter run again STAGE has a stage computed anew",
    ("charter check", "--json"): "its exit code is 2 where there are errors, and it prints each of them",
    ("charter plan mem", "--dtype"): "it is --precision of what is trained, and --weights of what only answers",
    ("charter", "-v"): "it is --version; CHARTER_DEBUG=1 before a command shows where an error happened",
    ("charter", "-V"): "it is --version",
    ("charter", "--verbose"): "CHARTER_DEBUG=1 before a command shows where an error happened",
}
"""Options of other tools by the command that has none of that name, and what to say instead."""


@contextmanager
def _slips_told(words: Sequence[str]) -> Iterator[None]:
    """Tell a slip on the command line as every other error is told."""
    try:
        yield
    except Exception as error:
        # typer has its own copy of click since 0.25: the class differs, its attributes do not.
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        raise UsageError(_slip(error, getattr(error, "ctx", None), words)) from None


def _slip(error: Any, ctx: Any, words: Sequence[str]) -> str:
    """Return what is wrong with the words of a command line."""
    # An option without its value is reported without the command that it stands behind.
    verb = next((verb for verb in (" ".join(words[:2]), *words[:1]) if verb in COMMANDS), "")
    command = f"charter {verb}".rstrip() if ctx is None else ctx.command_path
    option = getattr(error, "option_name", None) if type(error).__name__ == "NoSuchOption" else None
    if option is None or ctx is None:
        text = str(error.format_message()).rstrip(".")
        for pattern, says in TYPED.items():
            text = re.sub(pattern, says, text)
        return f"{text[:1].lower()}{text[1:]}" + ("" if text.endswith("?") else f"; {command} --help explains")
    if (ctx.command_path, option) in INSTEAD:
        return f"{command} has no option {option}: {INSTEAD[ctx.command_path, option]}"
    if (key := _key_of_option(option, ctx)) is not None:
        return key
    near = get_close_matches(option, [name for item in ctx.command.params for name in item.opts], n=2, cutoff=0.75)
    guess = f"did you mean {' or '.join(near)}?" if near else f"{command} --help lists them"
    return f"{command} has no option {option}; {guess}"


def _key_of_option(option: str, ctx: Any) -> str | None:
    """Return where an option that other tools have stands in Charter; None for any other."""
    from charter.spec.suggest import HABITS

    word = option.lstrip("-").lower().replace("-", "_")
    key = HABITS.get(word, word if word in HABITS.values() else None)
    start = f"{ctx.command_path} has no option {option}"
    if ctx.command_path == "charter plan":
        from charter.cli.inquiry import OTHERS, instead_of_option

        said = key or (word if word in OTHERS else None)
        instead = None if said is None else instead_of_option(option, said, ctx.meta.get(WORDS, ()))
        if instead is not None:
            return f"{start}: {instead}"
    if key is None:
        return None
    from charter.spec.suggest import key_of_stage

    place = key_of_stage(key)
    settable = any("--set" in parameter.opts for parameter in ctx.command.params)
    says = f"; say it with --set pipeline.STAGE.{place}=VALUE" if settable else ""
    return f"{start}: it is `{place}` of a stage in charter.yaml{says}"


def load(verb: str) -> Any:
    """Import the command or group of a verb."""
    below = [name for name in COMMANDS if name.startswith(f"{verb} ")]
    settings = {"help_option_names": ["-h", "--help"]}
    holder = typer.Typer(
        add_completion=False, rich_markup_mode=None, no_args_is_help=True, context_settings=settings,
        help=next((f"{verbs[verb].capitalize()}." for verbs in SCREEN.values() if verb in verbs), None),
    )  # fmt: skip
    if not COMMANDS[verb]:
        holder.callback()(lambda: None)
        command: Any = typer.main.get_command(holder)
    else:
        module, _, name = COMMANDS[verb].partition(".")
        target = getattr(import_module(f"charter.cli.{module}"), name)
        if isinstance(target, typer.Typer):
            target._add_completion = False
            command = typer.main.get_command(target)
        else:
            holder.command()(target)
            command = typer.main.get_command(holder)
    if hasattr(command, "add_command"):
        for name in below:
            command.add_command(load(name), name.rpartition(" ")[2])
        for item in command.commands.values():
            # Else click cuts the first sentence off at the end of the line.
            item.short_help = item.short_help or " ".join((item.help or "").partition("\n\n")[0].split())
    elif below:
        has = "it has" if len(below) == 1 else "each has"
        command.epilog = f"See also {', '.join(f'charter {name}' for name in below)}; {has} --help."
    return command


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"charter {version('charter-plan')}")
        raise typer.Exit


app = typer.Typer(
    name="charter",
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Plan, run and account for large-scale alignment training."""
    hide_output()


def _end_with(error: CharterError) -> NoReturn:
    print(f"error[{error.label}]: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


def entry() -> NoReturn:
    """Run the command line; turn every error into one clear message and a documented exit code."""
    hide_output()
    try:
        app(prog_name="charter")  # also as a module: hints go by the words of the command
    except CharterError as error:
        _end_with(error)
    except Exception as error:
        if os.environ.get("CHARTER_DEBUG"):
            raise
        # The core installs without torch, SQLAlchemy and the rest: a verb that needs one names what brings it.
        if isinstance(error, ModuleNotFoundError) and (extra := missing_extra(error)):
            _end_with(extra)
        if isinstance(error, OSError) and (refusal := refused(error)):
            _end_with(refusal)
        if isinstance(error, UnicodeEncodeError) and (refusal := not_utf_8(error)):
            _end_with(refusal)
        print(f"error[internal]: {type(error).__name__}: {without_secrets(str(error))}", file=sys.stderr)
        print("  this is a defect of Charter; CHARTER_DEBUG=1 shows where it happened", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    entry()
