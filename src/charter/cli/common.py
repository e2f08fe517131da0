"""Parts that several commands share: where the project is, how JSON is printed, options."""

import json
import os
import sys
from collections.abc import Container
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from charter.errors import SpecError, UsageError
from charter.spec import PROJECT_FILE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from charter.report.handover import EngineChoice
    from charter.spec.project import Project

UNTIL_THE_END = ExitStack()
"""What lasts as long as the command: the verb's group leaves it when the command has ended."""

WORDS = "charter.words"
"""Key of the words of the command line among what its contexts share."""
DirOption = Annotated[
    Path, typer.Option("-C", "--directory", help="Project directory (the one with charter.yaml).", show_default=False)
]
SweepOption = Annotated[
    str | None,
    typer.Option("--sweep", metavar="NAME", help="All points of this sweep of charter.yaml.", show_default=False),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a value of charter.yaml; repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Hash every output again, not only those whose size or time changed.")
]


def project_root(directory: Path) -> Path:
    """The project directory, also when its charter.yaml was given."""
    return (directory.parent if directory.is_file() else directory).resolve()


def open_project(directory: Path, overrides: list[str] | None = None) -> "tuple[Project, Path]":
    """Read the project of a directory (or of a charter.yaml)."""
    from charter.engines.project import load_project

    root = project_root(directory)
    path = directory if directory.is_file() else root / PROJECT_FILE
    check_project(directory)
    return load_project(path, overrides=overrides or (), env=dict(os.environ)), root


def check_project(directory: Path) -> None:
    """Raise a `UsageError` that names what is near where a path is neither a project nor its file."""
    if not directory.exists():
        above = directory.parent
        if directory.suffix in (".yml", ".yaml") and (above / PROJECT_FILE).is_file():
            near = f"{above / PROJECT_FILE} is there"
        elif directory.suffix not in (".yml", ".yaml") and _has_stage(above, directory.name):
            near = f"{directory.name} is a stage of the project here; charter run --only {directory.name} runs it"
        else:
            near = _projects_below(above) or "give the directory of a project"
        raise UsageError(f"there is no file or directory {directory}\n  {near}{_WRITES_ONE}")
    if not directory.is_file() and not (directory / PROJECT_FILE).is_file():
        near = _projects_below(directory) or "go to a project or give it with -C DIR"
        raise UsageError(f"there is no charter.yaml in {project_root(directory)}\n  {near}{_WRITES_ONE}")


_WRITES_ONE = "; `charter init --template cai-tiny DIR` writes one"


def _projects_below(directory: Path) -> str:
    below = sorted(directory.glob(f"*/{PROJECT_FILE}"))
    return f"one is in {below[0].parent}: give -C {below[0].parent}" if below else ""


def _has_stage(directory: Path, name: str) -> bool:
    project = loadable_project(directory) if (directory / PROJECT_FILE).is_file() else None
    return project is not None and name in project.pipeline


def planned_project(path: Path, template: str | None, overrides: list[str] | None) -> "tuple[Project, Path]":
    """The project of a path, or a shipped template written to a directory that lasts as long as the command."""
    if template is None:
        return open_project(path, overrides)
    from charter.templates.shipped import find_template, write_template

    directory = _lasting_directory() / template
    write_template(find_template(template), directory, force=False)
    return open_project(directory, overrides)


def project_of_text(text: str, overrides: list[str]) -> "tuple[Project, Path]":
    """The project of a text that is in no file."""
    directory = _lasting_directory()
    (directory / PROJECT_FILE).write_text(text, encoding="utf-8")
    return open_project(directory, overrides)


def _lasting_directory() -> Path:
    """A directory that lasts as long as the command."""
    from tempfile import TemporaryDirectory

    return Path(UNTIL_THE_END.enter_context(TemporaryDirectory(prefix="charter-plan-")))


def with_chosen_engines(
    project: "Project", root: Path, *, again: bool = False, out: Any = None
) -> "tuple[Project, tuple[EngineChoice, ...]]":
    """Choose the engines of stages that leave it open, and print why where a stream is given."""
    if not project.engines or all(stage.engine_by == "file" for stage in project.pipeline.values()):
        return project, ()
    from charter.report.handover import choose_engines

    project, choices = choose_engines(project, root, again=again)
    for item in choices if out is not None else ():
        print(f"engine of {item.stage}: {item.engine} ({item.why})", file=out, flush=True)
    return project, choices


def keep_chosen_engines(project: "Project", root: Path) -> None:
    """Write down the engines of a run that begins, so that every command knows them and it is resumed with the same."""
    if any(stage.engine_by == "plan" for stage in project.pipeline.values()):
        from charter.report.handover import keep_engines

        keep_engines(project, root)


def loadable_project(root: Path) -> "Project | None":
    """The project of a directory; None where there is no charter.yaml, or it no longer loads: a run may outlive it."""
    try:
        return open_project(root)[0]
    except (SpecError, UsageError):
        return None


def check_writable(option: str, path: Path, *, make_directory: bool = False) -> None:
    """Raise a `UsageError` where an option names no file that could be written."""
    wrong = "is a directory" if path.is_dir() else "" if make_directory or path.parent.is_dir() else "has no directory"
    if wrong:
        raise UsageError(f"{option} {path}: {wrong}; give a file in a directory that exists")


def write_asked(option: str, path: Path, text: str | bytes, *, make_directory: bool = False) -> None:
    """Write a file that an option named, whole or not at all; what is in the way is told as a `UsageError`."""
    from charter.artifacts.durable import write_file

    check_writable(option, path, make_directory=make_directory)
    try:
        if make_directory:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}; give a file that can be written") from None


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def wants_live_display() -> bool:
    """Return True if stdout is a terminal that can redraw; `CI` and a dumb terminal say no."""
    return sys.stdout.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


PIPE_WIDTH = 120


def console(pipe_width: int = PIPE_WIDTH, *, markup: bool = False) -> "Console":
    """A console on stdout; `pipe_width` columns where there is no terminal to ask, nor COLUMNS."""
    from rich.console import Console

    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=markup, markup=markup, width=None if has_width else pipe_width)


PLAN_PIPE_WIDTH = 140


def plan_console() -> "Console":
    """The terminal's width; a file or pipe gets lines wide enough for the tables of a plan."""
    return console(PLAN_PIPE_WIDTH, markup=True)


def plain_table(*columns: tuple[str, str]) -> "Table":
    """A table without borders; a column is its heading and `left`, `right` or `wrap`.

    On a narrow terminal texts and headings are folded; nothing is cut.
    """
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading, kind in columns:
        table.add_column(heading, justify="right" if kind == "right" else "left", overflow="fold")
    return table


def short_confidence(text: str) -> str:
    """A confidence in a word or two; the longest texts stay in the JSON.

    >>> short_confidence("M"), short_confidence("seen (sum)"), short_confidence("from memory, verify")
    ('from memory', 'seen', 'from memory')
    """
    if text in ("S", "M", "L"):
        return {"S": "seen", "M": "from memory", "L": "low"}[text]
    return "from memory" if "memory" in text else text.split(" (")[0].split(",")[0]


def words_of(context: typer.Context, names: Container[str]) -> list[str]:
    """The words of the present command line that gave these parameters, quoted for a shell; no variable's value."""
    import shlex

    from charter.redaction import without_variable

    words: list[str] = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in names or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[parameter.name]
        option = [] if parameter.param_type_name == "argument" else [parameter.opts[0]]
        for item in value if isinstance(value, list | tuple) else [value]:
            words += option if item is True else [*option, without_variable(str(item))]
    return [shlex.quote(word) for word in words]


HELP = ("-h", "--help")


def command_group(help_text: str, cls: type[TyperGroup] | None = None) -> typer.Typer:
    """A group of commands, whose help is shown where none of them is asked for."""
    return typer.Typer(
        cls=cls,
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": list(HELP)},
    )


class ListByDefault(TyperGroup):
    """A group whose `list` runs when the first word is none of its commands."""

    def is_meant(self, word: str) -> bool:
        """Return True if a word is a subcommand or nearly one, so that a slip is told as such."""
        return bool(get_close_matches(word, list(self.commands), n=1, cutoff=0.75))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` in front where no subcommand (and no help) is asked for."""
        if not args or not (args[0] in HELP or self.is_meant(args[0])):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class ShowOrListByDefault(ListByDefault):
    """A group that shows what is named: `charter catalog gpus H100` means `charter catalog gpus show H100`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `show` in front of a name; otherwise as `ListByDefault`."""
        if args and not args[0].startswith("-") and not self.is_meant(args[0]):
            args = ["show", *args]
        return super().parse_args(ctx, args)
