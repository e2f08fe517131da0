"""Questions without a file: their options, read into the charter.yaml that they stand for."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from charter.errors import BudgetError, InfeasibleError, Problem, SpecError, UsageError
from charter.spec import PROJECT_FILE
from charter.units import parse_count, parse_seconds, parse_usd, parse_usd_per_hour, short

if TYPE_CHECKING:
    from charter.errors import Problem
    from charter.plan.ask import Inquiry, KindFile
    from charter.plan.plan import Plan
    from charter.spec.project import Project

    Reader = Callable[[Sequence[str]], tuple[Project, Path]]

Number = TypeVar("Number", int, float)
_PANEL = "Without a file"


def _option(names: str, metavar: str, says: str) -> object:
    return typer.Option(*names.split(), metavar=metavar, help=says, show_default=False, rich_help_panel=_PANEL)


Tokens = Annotated[str | None, _option("--tokens", "N", "With pretrain, sft: tokens in all, like 100M.")]
Pairs = Annotated[str | None, _option("--pairs", "N", "With pm, dpo, label: pairs of answers, like 60k.")]
Prompts = Annotated[str | None, _option("--prompts", "N", "With ppo, grpo, generate: prompts, like 20k.")]
AnswerTokens = Annotated[
    str | None, _option("--answers", "N", "With ppo, grpo, generate: mean tokens of an answer, like 1k.")
]
Turns = Annotated[
    str | None, _option("--turns", "N", "With grpo: turns of an answer, with a tool's reply between turns.")
]
Seq = Annotated[str | None, _option("--seq", "N", "Tokens of a row.")]
Lora = Annotated[str | None, _option("--lora", "RANK", "Train adapters of this rank, not all weights.")]
Judge = Annotated[str | None, _option("--judge", "MODEL", "With cai: who compares answers, like 70B.")]
JudgePrice = Annotated[
    str | None,
    _option("--judge-price", "IN,OUT", "With cai, label: USD per 1M tokens of a judge that is an API."),
]
On = Annotated[
    str | None,
    _option(
        "--on --gpus",
        "GPU:N",
        "A machine like H100:8, or several: H100:16 is two; all of the price book if left out.",
    ),
]
Nodes = Annotated[str | None, _option("--nodes", "N", "The most machines; 1 with --on, else 16.")]
Price = Annotated[str | None, _option("--price", "USD", "Per hour of one accelerator of your own, like 2.")]
Market = Annotated[str | None, _option("--market", "NAME", "spot, on_demand or any; on_demand if left out.")]
Budget = Annotated[str | None, _option("--budget", "USD", "The limit, like 5k.")]
Deadline = Annotated[str | None, _option("--deadline", "TIME", "The latest end from now, like 3d.")]


Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="With KIND: write the charter.yaml that the question stands for."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file of --save if it is there.")]
WORK = ("model", "tokens", "pairs", "prompts", "answers", "turns", "seq", "lora", "judge", "judge_price", "on")
"""Parameters of a command that are words of `--what-if` too; for the others it has words of its own."""
OPTIONS = (*WORK[1:], "nodes", "price", "market", "budget", "deadline")
"""Parameters of a command that describe a question, beside its kind and model."""


def check_limits_asked(fail_over_budget: bool, allow_over_budget: bool) -> None:
    """Raise a `UsageError` for two options that contradict each other."""
    if fail_over_budget and allow_over_budget:
        raise UsageError("--fail-over-budget and --allow-over-budget ask for opposites; give one of them")


def said_in(context: typer.Context) -> dict[str, str | None]:
    """Return what a command line says of a question, by parameter."""
    return {name: context.params[name] for name in OPTIONS}


def question_file(context: typer.Context, changes: Sequence[str]) -> "KindFile | None":
    """The charter.yaml that a question stands for; None where a project is named, since paths win over kinds."""
    from charter.cli.common import WORDS, words_of
    from charter.plan.ask import kind_file, kind_of, unknown_word

    word, model, save, force = (context.params[name] for name in ("config", "model", "save", "force"))
    said = said_in(context)
    kind = None if word is None or word.exists() else kind_of(str(word))
    if kind is not None:
        _refuse_of_projects(context, str(word))
        file = kind_file(inquiry_of(kind, model, said))
        if save is not None:
            _check_target(save, force=force)
        over = tuple(f"over this, --set {change}" for change in context.params["overrides"] or ())
        text = _changed(file.text, changes) if changes else file.text
        return replace(file, text=text, assumed=(*file.assumed, *over), amount=None if changes else file.amount)
    if word is not None and not word.exists() and _is_no_path(word):
        raise unknown_word(str(word), " ".join([model or "8B", *words_of(context, OPTIONS)]))
    typed = context.find_root().meta.get(WORDS, ())
    names = {"on": "gpus"} if any(word.partition("=")[0] == "--gpus" for word in typed) else {}
    given = [str(model)] if model else []
    given += [f"--{names.get(name, name).replace('_', '-')}" for name, text in said.items() if text is not None]
    given += [f"--{name}" for name, is_given in (("save", save is not None), ("force", force)) if is_given]
    if given:
        raise UsageError(
            f"{', '.join(given)}: is for questions without a file, like `charter plan sft Llama-3.1-8B --tokens 100M`; "
            "in a project, say it in charter.yaml or with --set"
        )
    return None


def _is_no_path(word: Path) -> bool:
    """Return whether a word that is no file was hardly meant as one: a kind that is none, or a model."""
    from charter.catalog.models import find

    return (word.suffix == "" and len(word.parts) == 1) or find(str(word)) is not None


def _refuse_of_projects(context: typer.Context, kind: str) -> None:
    """Raise a `UsageError` for options that only a project can be asked with."""
    from charter.cli.common import words_of

    given = words_of(context, ("template", "directory", "sweep"))
    if given:
        raise UsageError(
            f"{' '.join(given)}: is of projects, and {kind} is a question without a file; "
            "to compare, --what-if nodes=2 or --alternatives 3"
        )
    if context.params["all_hardware"] and context.params["on"] is not None:
        raise UsageError(f"--on {context.params['on']} and --all-hardware ask for opposites; give one of them")


def _check_target(save: Path, *, force: bool) -> None:
    """Raise a `UsageError` for a file that cannot be written or that somebody may want to keep."""
    from charter.cli.common import check_writable

    check_writable("--save", save)
    if save.exists() and not force:
        raise UsageError(f"--save {save}: is there already; give another name, or --force")


def _changed(text: str, changes: Sequence[str]) -> str:
    """Return the text of a project with values put over it; what is wrong with them is told when it is read."""
    import yaml

    from charter.spec.load import apply_overrides
    from charter.spec.yaml_source import parse_document

    document = parse_document(text, origin="")
    apply_overrides(document, changes, {})
    return yaml.safe_dump(document.value, sort_keys=False)


def project_reader(context: typer.Context, file: "KindFile | None", path: Path, changes: Sequence[str]) -> "Reader":
    """Return what reads the project of a question, a path or a template, with further values put over it.

    Of a question `tokens=1B` or `lora=16` is put over what was asked, and any other value over its file.
    """
    from charter.cli.common import planned_project, project_of_text
    from charter.plan.ask import kind_file, kind_of

    given = context.params
    if file is None:
        if given["template"] is None and path == Path(".") and not Path(PROJECT_FILE).exists():
            _refuse_no_project()
        return lambda more: planned_project(path, given["template"], [*changes, *more])

    def read(more: Sequence[str]) -> "tuple[Project, Path]":
        pairs = [change.partition("=")[::2] for change in more]
        other = {"model": given["model"]} | said_in(context) | {key: text for key, text in pairs if key in WORK}
        others = [f"{key}={text}" for key, text in pairs if key not in WORK]
        inquiry = inquiry_of(str(kind_of(str(given["config"]))), other.pop("model"), other)
        return project_of_text(kind_file(inquiry).text, [*changes, *others])

    return read


def _refuse_no_project() -> None:
    """Raise a `UsageError` that also names the way without a file."""
    from charter.cli.common import open_project

    try:
        open_project(Path("."))
    except UsageError as error:
        raise UsageError(f"{error}; without a file: charter plan sft 8B --tokens 100M") from None


@contextmanager
def said_in_options(file: "KindFile | None") -> Iterator[None]:
    """Say in options what an error says of keys and lines of a file that nobody has."""
    try:
        yield
    except SpecError as error:
        if file is None:
            raise
        raise SpecError([problem_of_question(problem) for problem in error.problems]) from None
    except (BudgetError, InfeasibleError) as error:
        if file is None:
            raise
        error.args = (in_options(str(error), file),)
        raise


def advised_in_options(plan: "Plan", file: "KindFile | None") -> "Plan":
    """Return a plan whose advice names options of the question."""
    if file is None:
        return plan
    advice, budget_advice = (
        tuple(in_options(line, file) for line in lines) for lines in (plan.advice, plan.budget_advice)
    )
    return replace(plan, advice=advice, budget_advice=budget_advice)


def inquiry_of(kind: str, model: str | None, said: Mapping[str, str | None]) -> "Inquiry":
    """Return the inquiry about a kind of stage, its numbers parsed."""
    from charter.catalog.accelerators import usual_request
    from charter.plan.ask import Inquiry
    from charter.plan.what_if import MARKETS

    def read(name: str, reader: Callable[[object], Number]) -> "Number | None":
        text = said[name]
        least = "more than 0" if name in ("budget", "deadline") else "0 or more" if name == "price" else "1 or more"
        if text is not None and text.strip().startswith("-"):
            raise UsageError(f"--{name} {text}: give {least}")
        try:
            number = None if text is None else reader(text)
        except ValueError as error:
            raise UsageError(f"--{name} {text}: {error}") from None
        if number is not None and number <= 0 and name != "price":
            raise UsageError(f"--{name} {text}: give {least}")
        return number

    read("price", parse_usd_per_hour)
    read("deadline", parse_seconds)
    market = said["market"]
    if market is not None and market not in MARKETS:
        raise UsageError(f"--market {market}: there is no such market; give spot, on_demand or any")
    if "," in (said["on"] or ""):
        first, *others = (part.strip() for part in str(said["on"]).split(","))
        beside = "".join(f" --what-if accelerators={other}" for other in others if other)
        raise UsageError(f"--on {said['on']}: takes one type; to see others beside it, --on {first}{beside}")
    return Inquiry(
        kind=kind,
        model=model,
        tokens=read("tokens", parse_count),
        pairs=read("pairs", parse_count),
        prompts=read("prompts", parse_count),
        answers=read("answers", parse_count),
        seq_len=read("seq", parse_count),
        lora=read("lora", parse_count),
        nodes=read("nodes", parse_count),
        turns=read("turns", parse_count),
        judge=said["judge"],
        judge_price=said["judge_price"],
        accelerators=None if said["on"] is None else usual_request(said["on"]),
        price=said["price"],
        market=market,
        budget_usd=read("budget", parse_usd),
        deadline=said["deadline"],
    )


SHOWN = {"as_json", "explain", "expand", "any_engine", "probe", "output", "html", "start", "alternatives", "what_if"}
SHOWN |= {"fail_over_budget", "allow_over_budget", "fail_over_deadline", "save", "force", "sweep"}
"""Parameters of `charter plan` that say what is shown of a plan or done with it, not what is planned."""


def going_on(context: typer.Context, template: str | None, file: "KindFile | None") -> tuple[str, str]:
    """Return the command that asks for the same plan again, and the step after it."""
    from charter.cli.common import words_of

    again = " ".join(["charter plan", *words_of(context, context.params.keys() - SHOWN)])
    if file is not None:
        return again, "--save charter.yaml"
    if template is not None:
        return again, f"charter init --template {template} my-run"
    return again, " ".join(["charter run", *words_of(context, {"config", "directory", "overrides"})])


def say_what_file(file: "KindFile", save: Path | None, *, listed: bool) -> None:
    """Say where the file of a question is or how to get it, and what was filled in unless the plan has listed it."""
    if not listed:
        typer.echo("Assumed: " + "; ".join(file.assumed) + ".")
    if save is None:
        typer.echo("--save charter.yaml writes the file that this question stands for.")
    else:
        typer.echo(f"Written: {save}; bring the data that it names, then charter run.")


# -------- Remedies: a plan names keys of charter.yaml, of which somebody who asks without a file has none.

KEYS: Mapping[str, str | Callable[[re.Match[str]], str]] = {
    r"raise budget\.limit to \$(\d[\d,]*(?:\.\d+)?)": lambda match: f"give --budget {_at_least(match[1])}",
    r"raise budget\.limit": "raise --budget",
    r"\buse_spot: auto": "--market any",
    r"set resources\.price to plan it": "--price plans one of yours",
    r"set resources\.price": "give --price",
    r"what resources ask for": "what --on asks for",
    r"resources\.max_nodes: ": "--nodes ",
    r"resources\.max_nodes": "--nodes",
    r"\(adapter: \{rank: (\d+)\}\)": r"(--lora \1)",
    r"a shorter seq_len": "a shorter --seq",
    r"a shorter max_prompt_tokens or max_new_tokens": "shorter --answers",
    r"objective: (?=fastest|balanced|cheapest)": "--objective ",
    r"feasible from deadline: ": "feasible from --deadline ",
    r"a later deadline": "a later --deadline",
    r"`engine:` of the stage": "--set pipeline.STAGE.engine=NAME",
    r"\bengine: (\w+) does\b": r"--set pipeline.STAGE.engine=\1 does",
}
"""What a plan says of a key, and what says it on the command line."""
FIELDS = {
    "seq_len": "--seq",
    "mean_new_tokens": "--answers",
    "rank": "--lora",
    "max_nodes": "--nodes",
    "accelerators": "--on",
    "price": "--price",
    "limit": "--budget",
    "deadline": "--deadline",
}
"""The option that stands behind a field of the file."""


LIKE = {
    "global_batch": ("minibatch", "rollout_batch"),
    "epochs": ("ppo_epochs",),
    "steps": ("episodes",),
}
"""Keys of other kinds of stage for what is called so in training."""


OTHERS: Mapping[str, str] = {
    "samples": "data",
    "examples": "data",
    "conversations": "data",
    "rows": "data",
    "context": "seq_len",
    "ctx": "seq_len",
    "hardware": "accelerators",
    "cloud": "it is --set resources.infra={value} here",
    "provider": "it is --set resources.infra={value} here",
    "infra": "it is --set resources.infra={value} here",
    "spot": "it is --market spot here",
    "use_spot": "it is --market spot here",
    "time": "it is --deadline {value} here, like --deadline 3d",
    "hours": "it is --deadline {value}h here",
    "days": "it is --deadline {value}d here",
    "max_cost": "it is --budget {value} here",
    "engine": "say --set pipeline.{stage}.engine={value}",
    "framework": "say --set pipeline.{stage}.engine={value}",
    "backend": "say --set pipeline.{stage}.engine={value}",
    "load_in_4bit": "say --lora 16 --set pipeline.{stage}.adapter.base_bits=4",
    "constitution": "the file that --save writes names it",
    "reward": "a rule, or for ppo a model of the policy's size, is assumed; the file that --save writes names it",
    "reward_model": "ppo assumes one of the policy's size; the file that --save writes names it",
    "reward_fn": "grpo assumes a rule that costs nothing; the file that --save writes names it",
    "teacher": "a question knows no teacher; say `distillation` of a ppo stage in the file that --save writes",
}
"""What else people say of a plan: the key of charter.yaml, or a sentence with the value and the stage."""


def instead_of_option(option: str, key: str, words: Sequence[str]) -> str | None:
    """Return what a question says in place of an option of another tool, whose key in charter.yaml is `key`.

    None where the words ask about a file.

    >>> instead_of_option("--lr", "learning_rate", ["plan", "grpo", "7B", "--lr", "1e-6"])
    'say --set pipeline.rl.learning_rate=1e-6'
    >>> instead_of_option("--max-length", "seq_len", ["plan", "sft", "8B", "--max-length=4096"])
    'it is --seq 4096 here'
    """
    from charter.plan.ask import AMOUNT, OPTION_OF, SPOKEN, kind_of, stage_of_kind, takes
    from charter.spec.suggest import key_of_stage

    kind = next((kind_of(word) for word in words[1:2]), None)
    if kind is None:
        return None
    after = dict(pairwise(words)) | dict(word.split("=", 1) for word in words if "=" in word)
    value = after.get(option, "VALUE")
    value = "VALUE" if value.startswith("-") else value
    stage = stage_of_kind(kind)
    other = OTHERS.get(key, key)
    if " " in other:
        return other.format(value=value, stage="STAGE" if stage is None else stage[0])
    key = other
    if key == "model":
        return f"the model stands after the kind: charter plan {SPOKEN[kind]} {value.replace('VALUE', 'MODEL')}"
    if key == "data":
        amount = f"say how much there is with {OPTION_OF[AMOUNT[kind]]}; " if kind in AMOUNT else ""
        return f"{amount}the file that --save writes names the data"
    if key == "accelerators":
        usual = (
            f"H100:{value}" if value.isdigit() else f"{value}:8" if value != "VALUE" and ":" not in value else "H100:8"
        )
        return f"it is --on here, with type and number, like --on {usual}"
    if key == "adapter" and "lora" in takes(kind):
        return "it is --lora here, with a rank, like --lora 16"
    if FIELDS.get(key) in [OPTION_OF[name] for name in takes(kind)]:
        return f"it is {FIELDS[key]} {value} here"
    if stage is None:
        return None
    name, names = stage
    place = key_of_stage(key)
    if key in names or place != key:
        return f"say --set pipeline.{name}.{place}={value}"
    # What is only like it counts in other units: the value is left to the reader.
    near = [f"--set pipeline.{name}.{other}=VALUE" for other in LIKE.get(key, ()) if other in names]
    return f"{SPOKEN[kind]} has nothing called so; like it are {' and '.join(near)}" if near else None


def in_options(text: str, file: "KindFile") -> str:
    """Return what a plan says in keys of the file in options of the question; `--set` where no option is meant.

    >>> from charter.plan.ask import Inquiry, kind_file
    >>> file = kind_file(Inquiry(kind="sft", tokens=10**8))
    >>> in_options("sft with epochs: 0.043 brings the plan to about $1.00", file)
    '--tokens 4.3M brings the plan to about $1.00'
    """
    for key, option in KEYS.items():
        text = re.sub(key, option, text)
    if stage := re.match(r"stage '(\w+)'", text):
        text = text.replace("pipeline.STAGE.", f"pipeline.{stage[1]}.")
    text = re.sub(
        r"(\w+) with (\w+): ([\d_.]+)(?: \(planned: ([\d_]+)\))?",
        lambda match: _less(file, match[1], match[2], match[3], match[4] or "1"),
        text,
    )
    if file.amount is None:
        return text
    option, number = file.amount
    paid = r"(\d+)% of the work at p90(?!:)"
    return re.sub(paid, lambda match: f"{match[0]}: {option} {_share(number, int(match[1]) / 100)}", text)


def _less(file: "KindFile", stage: str, field: str, value: str, planned: str) -> str:
    """Return how less work is asked for: a share of the planned, as less data where an option says how much."""
    if file.amount is None:
        return f"--set pipeline.{stage}.{field}={value.replace('_', '')}"
    option, number = file.amount
    return f"{option} {_share(number, float(value.replace('_', '')) / int(planned.replace('_', '')))}"


def _share(number: int, share: float) -> str:
    """Return a share of a number with two digits, rounded down.

    >>> _share(100_000_000, 0.0438), _share(20_000, 0.291)
    ('4.3M', '5.8k')
    """
    left = number * share * (1 + 1e-9)
    unit = 10 ** max(0, math.floor(math.log10(max(1.0, left))) - 1)
    return str(short(max(1, math.floor(left / unit) * unit)))


def _at_least(money: str) -> str:
    """Return an amount that is no less than a printed one, in whole dollars from ten on.

    >>> _at_least("23.43"), _at_least("0.3755"), _at_least("1,085")
    ('24', '0.38', '1086')
    """
    usd = float(money.replace(",", ""))
    return f"{math.floor(usd) + 1}" if usd >= 10 else f"{math.ceil(usd * 100) / 100:g}"


def problem_of_question(problem: "Problem") -> "Problem":
    """Return a problem of the question's own file as one of the option behind it; nobody has seen a line of it."""
    if problem.line is None:
        return problem
    option = FIELDS.get(problem.path.rpartition(".")[2], problem.path)
    return Problem(message=problem.message, path=option, hint=problem.hint)
