"""Files and modules that docstrings and pages name are there, under that name: a move leaves no wrong signpost."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "src" / "charter"
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
TEXTS = {path: path.read_text() for path in (*sorted(PACKAGE.rglob("*.py")), *PAGES)}
OTHERS = {"optimizer.py", "parallel_state.py", "utils.py", "path/to/file.py", "rewards/form.py"}
"""Of bitsandbytes and Megatron-LM; the name that no file here has; and examples of a user's own."""
OF_ENGINES = (
    PACKAGE / "engines",
    PACKAGE / "hosted",
    ROOT / "docs" / "reference" / "engine-mapping.md",
    ROOT / "CONTRIBUTING.md",
)
"""What is said here of other engines names files of their code, at the version that stands beside it."""
FILE = re.compile(r"(?<![\w/.*{<-])[\w./-]*\w\.py\b")
MODULE = re.compile(r"`(?:charter\.)?([a-z_]+(?:[/.][A-Za-z_0-9]+)+)/?`")
DATA = (".py", ".toml", ".csv", ".json", ".jsonl", ".yaml", ".md", ".html")

NO_MODULES = ("run/", "data.")


@cache
def python_files() -> tuple[str, ...]:
    folders = ("src", "tests", "tools", "benchmarks", "docs")
    return tuple("/" + path.relative_to(ROOT).as_posix() for name in folders for path in (ROOT / name).rglob("*.py"))


def missing_files(text: str) -> list[str]:
    """Python files that a text names and the repository lacks; the end of a path is enough."""
    named = {found.removeprefix("./") for found in FILE.findall(text)} - OTHERS
    return sorted(name for name in named if not any(path.endswith(f"/{name}") for path in python_files()))


def missing_modules(text: str, *, page: bool = False) -> list[str]:
    """Modules of Charter, or names in them, that a text gives in backquotes and the package lacks.

    On a page only those with slashes: what has dots there is a key of charter.yaml or of the JSON of a plan.
    """
    named = {found for found in MODULE.findall(text) if not found.endswith(DATA) and not (page and "." in found)}
    # A path in a run's directory (`run/stages`) and a key of charter.yaml (`data.pairs`) begin like packages.
    return sorted(name for name in named if not name.startswith(NO_MODULES) and not stands(re.split(r"[/.]", name)))


def stands(parts: list[str]) -> bool:
    """Whether a dotted or slashed path leads to a package, a module, or a name that a module defines."""
    here = PACKAGE
    if not (here / parts[0]).is_dir():
        return True
    for number, part in enumerate(parts):
        if (here / part).is_dir():
            here = here / part
            continue
        module = here / f"{part}.py"
        if not module.is_file():
            return False
        rest = parts[number + 1 :]
        return not rest or re.search(rf"\b{rest[0]}\b", module.read_text()) is not None
    return True


def test_every_file_that_is_named_is_there():
    ours = {path: text for path, text in TEXTS.items() if not any(path.is_relative_to(place) for place in OF_ENGINES)}
    found = {path.relative_to(ROOT).as_posix(): missing_files(text) for path, text in ours.items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_every_module_that_is_named_is_there():
    found = {
        path.relative_to(ROOT).as_posix(): missing_modules(text, page=path.suffix == ".md")
        for path, text in TEXTS.items()
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_the_rules_see_what_they_should():
    assert missing_files("see `plan/no_such_file.py` and plan/make.py, ./tools/suites.py") == ["plan/no_such_file.py"]
    assert missing_modules("`physics.no_such` `spec/load` `physics.terms.Z90` `plan.json`") == ["physics.no_such"]
    assert missing_modules("`physics.no_such` `spec/no_such`", page=True) == ["spec/no_such"]
    assert missing_modules("`physics.terms.NoSuch`, `report/assets/`, `run/stages`") == ["physics.terms.NoSuch"]
