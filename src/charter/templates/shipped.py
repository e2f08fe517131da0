"""The projects that `charter init` writes: which files each has, and where they lie in the package."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from charter.errors import UsageError

CONSTITUTION = {"constitution.yaml": "data/principles.yaml"}
HH_DATA = {
    "preference_train.jsonl": "data/preference_train.jsonl",
    "preference_test.jsonl": "data/preference_test.jsonl",
    "prompts.jsonl": "data/prompts.jsonl",
    "licenses/hh-rlhf.MIT.txt": "data/licenses/hh-rlhf.MIT.txt",
}

SORTING_DATA = tuple(f"sorting_{part}.jsonl" for part in ("demonstrations", "problems", "shuffled", "test"))
"""Written by `tools/sorting_data.py`."""

ARITHMETIC_DATA = tuple(f"arithmetic_{part}.jsonl" for part in ("demonstrations", "problems", "test"))
"""Written by `tools/arithmetic_data.py`."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """One project to start from."""

    name: str
    summary: str
    shared: Mapping[str, str]
    """Files that several templates have: path in the project -> path in the package."""
    brings: tuple[str, ...] = ()
    """Data files that the user must add before `charter run`."""

    @property
    def files(self) -> dict[str, str]:
        """Path in the project -> path in the package, of every file that is written."""
        own = {name: f"{self.name}/{name}" for name in ("charter.yaml", "README.md")}
        return {**own, **self.shared}


TEMPLATES: tuple[Template, ...] = (
    Template(
        name="cai-tiny",
        summary="Constitutional AI from scratch on a CPU in minutes, on real data (the demo)",
        shared={**CONSTITUTION, **HH_DATA},
    ),
    Template(
        name="cai-smoke",
        summary="the same pipeline in miniature, about a minute on a CPU; for tests",
        shared={**CONSTITUTION, **HH_DATA},
    ),
    Template(
        name="rlvr-tiny",
        summary="RL with a verifiable reward (GRPO, no reward model) from scratch on a CPU in minutes",
        shared={name: f"data/{name}" for name in SORTING_DATA},
    ),
    Template(
        name="tools-tiny",
        summary="RL with a tool (GRPO over several turns, a calculator) from scratch on a CPU in minutes",
        shared={
            "rewards.py": "data/rewards_by_lot.txt",
            **{name: f"data/{name}" for name in ARITHMETIC_DATA},
        },
    ),
    Template(
        name="cai-8b",
        summary="Constitutional AI for an 8B model with a 70B judge (Bai et al. 2022)",
        shared=CONSTITUTION,
        brings=("helpful_chat.jsonl", "helpful_pairs.jsonl", "red_team.jsonl", "test_pairs.jsonl"),
    ),
    Template(
        name="cai-70b",
        summary="Constitutional AI for a 70B model (Bai et al. 2022)",
        shared=CONSTITUTION,
        brings=("helpful_chat.jsonl", "helpful_pairs.jsonl", "red_team.jsonl", "test_pairs.jsonl"),
    ),
    Template(
        name="rlaif-8b",
        summary="RL from AI feedback for an 8B model with a 70B judge (Lee et al. 2023)",
        shared=CONSTITUTION,
        brings=("demonstrations.jsonl", "prompts.jsonl", "test_pairs.jsonl"),
    ),
    Template(
        name="grpo-7b",
        summary="GRPO with a verifiable reward for a 7B model (DAPO, Yu et al. 2025); no reward model",
        shared={},
        brings=("problems.jsonl",),
    ),
    Template(
        name="constitution-rl-8b",
        summary="the constitution as a served judge's rubric, GRPO, for an 8B model; no preference model",
        shared=CONSTITUTION,
        brings=("demonstrations.jsonl", "prompts.jsonl", "test_pairs.jsonl", "refuse.jsonl", "benign.jsonl"),
    ),
)


def find_template(name: str) -> Template:
    """The template of a name, or a `UsageError` with the names that there are."""
    match = next((template for template in TEMPLATES if template.name == name), None)
    if match is None:
        import difflib

        names = [template.name for template in TEMPLATES]
        near = difflib.get_close_matches(name.lower(), names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"no template is called {name!r}; {hint}there are: {', '.join(names)}")
    return match


def shipped_bytes(path: str) -> bytes:
    """The content of a file of this package, by its path in it: `data/prompts.jsonl`."""
    return resources.files("charter.templates").joinpath(*path.split("/")).read_bytes()


def write_template(template: Template, directory: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write a template's files into a directory; returns what was written.

    A directory that holds anything is refused, unless `force`: then the template's files replace those of the
    same name, and nothing else is touched.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file; name a directory to write the project into")
    if not force and directory.is_dir() and any(directory.iterdir()):
        names = sorted(item.name for item in directory.iterdir())
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise UsageError(
            f"{directory} is not empty ({shown}); name a new directory, or pass --force to replace the template's files"
        )
    written = []
    try:
        for name, source in template.files.items():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(shipped_bytes(source))
            written.append(target)
    except OSError as error:
        raise UsageError(f"{error.filename or directory} cannot be written: {error.strerror}") from None
    return tuple(written)
