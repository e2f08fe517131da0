"""Print the figures of the house: sizes, slices, names, dead code. `make house`; `--check` holds them to limits.

    python tools/house.py [--json] [--list FIGURE] [--check]

The limits of `tools/house_limits.toml` may only fall: a figure above its limit fails, and of one below it is said what
to write there. Definitions that only tests refer to fail too, unless they wait for an issue that is named there.
"""

import argparse
import ast
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unreferenced import Module, imported_from, read_modules, unpassed, unreferenced, users

ROOT = Path(__file__).resolve().parent.parent
LIMITS = "tools/house_limits.toml"
BANNED = ("found", "known", "made", "kept", "whole", "asked", "told", "held")
QUESTION = re.compile(r"(What|Whether|How|Where|Which|Why|When|Who)\b")
ENGINES = {"verl": "verl", "openrlhf": "openrlhf", "nemo_rl": "nemo_rl", "trl": "huggingface"}
"""By the word that other files should not hold: the folder where it belongs."""
SLEEPS = ("time.sleep", "asyncio.sleep", "sleep")
"""Calls that wait; vLLM's `engine.sleep()` gives memory back."""
TINY_LINES, LONG_LINES, LONG_FILE_LINES, LONG_NAME = 3, 60, 600, 60
TWIN_LENGTH = 400
"""Of a parsed body as text, below which two functions may well say the same: about a line."""
STAGE_CHECK = re.compile(r"isinstance\([^)]*Stage\b|\b(stage|spec)\.kind [=!]=|^\s*case [^:]*\w+Stage\(")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Figure:
    """One figure: its value is how many `places` there are, unless it is a sum that has no places."""

    title: str
    places: tuple[str, ...] = ()
    total: int | None = None

    @property
    def value(self) -> int:
        """Return the number that is printed and limited."""
        return len(self.places) if self.total is None else self.total


def importers(modules: Sequence[Module]) -> dict[str, set[str]]:
    """Return the modules that import each module of the package; imports in functions and for types count too."""
    names = {module.name for module in modules}
    result: dict[str, set[str]] = {name: set() for name in names}
    for module in modules:
        for node in module.nodes:
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = imported_from(module, node)
                targets = [name if (name := f"{base}.{alias.name}") in names else base for alias in node.names]
            for target in targets:
                if target in names and target != module.name:
                    result[target].add(module.name)
    return result


def one_importer(modules: Sequence[Module]) -> tuple[list[Module], list[Module]]:
    """Return the modules with exactly one importer, and those of them whose importer lies in the same folder.

    An `__init__` is no such module, but an importer like any other.
    """
    by_name, folders = importers(modules), {module.name: module.path.parent for module in modules}
    single = [module for module in modules if not module.is_package and len(by_name[module.name]) == 1]
    return single, [module for module in single if folders[next(iter(by_name[module.name]))] == module.path.parent]


def lines_of(function: Function) -> int:
    """Return the lines of a function from `def` to its end, without its docstring."""
    first = function.body[0]
    docstring = 0 if ast.get_docstring(function, clean=False) is None else (first.end_lineno or 0) - first.lineno + 1
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def body_lines(function: Function) -> int:
    """Return the lines of a function's statements: neither its parameters, as a command's options are, nor the text."""
    steps = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (steps[-1].end_lineno or 0) - steps[0].lineno + 1 if steps else 0


def bare(modules: Sequence[Module], root: Path) -> tuple[str, ...]:
    """Return the public functions, methods and classes without a docstring; functions inside functions are none."""
    return tuple(
        f"{module.path.relative_to(root)}:{node.lineno} {node.name}"
        for module in modules
        for owner in module.nodes
        if isinstance(owner, (ast.Module, ast.ClassDef))
        for node in owner.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if not node.name.startswith("_") and ast.get_docstring(node) is None
    )


def bound_names(function: Function) -> list[ast.Name]:
    """Return the names that the body of a function binds; those of functions inside it are theirs."""
    names: list[ast.Name] = []
    nodes: list[ast.AST] = list(function.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            nodes.extend(ast.iter_child_nodes(node))
    return names


def _matching(pattern: re.Pattern[str], files: Iterable[Path], root: Path) -> tuple[str, ...]:
    """Return `file:line` for each line that a pattern matches."""
    return tuple(
        f"{path.relative_to(root)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    )


def twins(modules: Sequence[Module], root: Path) -> tuple[str, ...]:
    """Return the functions that say what an earlier one says, but for the names of arguments and variables."""
    first: dict[str, str] = {}
    places = []
    for module in modules:
        for node in module.nodes:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            body = node.body[1:] if ast.get_docstring(node) else node.body
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            names += [item.id for item in bound_names(node) if item.id not in names]
            text = "".join(map(ast.dump, body))
            for number, name in enumerate(dict.fromkeys(names)):
                text = text.replace(f"id='{name}'", f"id={number}")
            if len(text) < TWIN_LENGTH:
                continue
            place = f"{module.path.relative_to(root)}:{node.lineno} {node.name}"
            if text in first:
                places.append(f"{place} = {first[text]}")
            first.setdefault(text, place)
    return tuple(places)


def figures(root: Path, public: Sequence[str] = (), waiting: Collection[str] = ()) -> dict[str, Figure]:
    """Return all figures of a repository (`src`, `tests`, `tools`, `benchmarks`) by their names."""
    modules = read_modules(root / "src")
    sources = [module.path for module in modules]
    tests = sorted((root / "tests").rglob("*.py"))

    def at(module: Module, line: int) -> str:
        return f"{module.path.relative_to(root)}:{line}"

    functions, tiny, long, docstrings, questions, banned = [], [], [], 0, [], []
    classes: dict[str, list[str]] = defaultdict(list)
    for module in (*read_modules(root / "tools"), *read_modules(root / "benchmarks")):
        for node in module.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                banned += [f"{at(module, n.lineno)} {n.id}" for n in bound_names(node) if n.id in BANNED]
    for module in modules:
        for node in module.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                functions.append(node)
                if lines_of(node) <= TINY_LINES:
                    tiny.append(at(module, node.lineno))
                if body_lines(node) > LONG_LINES:
                    long.append(f"{at(module, node.lineno)} {node.name}")
                banned += [f"{at(module, n.lineno)} {n.id}" for n in bound_names(node) if n.id in BANNED]
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(at(module, node.lineno))
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                docstring = ast.get_docstring(node)
                docstrings += docstring is not None
                if docstring and QUESTION.match(docstring):
                    questions.append(at(module, getattr(node, "lineno", 1)))
    single, sliced = one_importer(modules)
    dead, idle = unreferenced(root, modules, public, waiting)
    by = users(dead, {name: root / name for name in ("tests", "benchmarks") if (root / name).exists()})
    names, sleeps = [], []
    for path in tests:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                names.append(f"{path.relative_to(root)}::{node.name}")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS:
                sleeps.append(f"{path.relative_to(root)}:{node.lineno}")
    lines = {module.path: len(module.text.splitlines()) for module in modules}
    share = f" of {docstrings:,} ({100 * len(questions) / max(1, docstrings):.0f} %)"
    result = {
        "lines": Figure("source lines", total=sum(lines.values())),
        "modules": Figure("modules", total=len(modules)),
        "one_importer": Figure("modules with one importer", tuple(m.name for m in single)),
        "sliced": Figure("of those, the importer lies in the same folder", tuple(m.name for m in sliced)),
        "tiny_functions": Figure(f"functions of at most {TINY_LINES} lines, of {len(functions):,}", tuple(tiny)),
        "long_functions": Figure(f"functions of more than {LONG_LINES} lines, parameters aside", tuple(long)),
        "bare": Figure("public definitions without a docstring", bare(modules, root)),
        "dead": Figure(
            "definitions that only tests refer to, or nothing",
            tuple(f"{unit.label} ({', '.join(by[unit.label]) or 'nothing'})" for unit in dead),
        ),
        "waiting": Figure("dead definitions that wait for an issue", tuple(unit.label for unit in idle)),
        "unpassed": Figure("parameters that no caller passes", tuple(unpassed(root, modules, public))),
        "class_names": Figure(
            "class names used twice or more",
            tuple(f"{name} {len(places)}" for name, places in sorted(classes.items()) if len(places) > 1),
        ),
        "twins": Figure("functions that say what another one says, but for names", twins(modules, root)),
        "banned_names": Figure(f"local names {', '.join(BANNED)}, in src, tools and benchmarks", tuple(banned)),
        "question_docstrings": Figure(f"docstrings that open with a question word,{share}", tuple(questions)),
        "stage_checks": Figure(
            "dispatch by a stage's kind: isinstance, case, .kind ==", _matching(STAGE_CHECK, sources, root)
        ),
        "long_files": Figure(
            f"source files over {LONG_FILE_LINES} lines",
            tuple(str(path.relative_to(root)) for path, count in lines.items() if count > LONG_FILE_LINES),
        ),
        "test_sleeps": Figure("calls of sleep in tests", tuple(sleeps)),
        "long_test_names": Figure(
            f"test names over {LONG_NAME} characters, of {len(names):,}",
            tuple(name for name in names if len(name.partition("::")[2]) > LONG_NAME),
        ),
    }
    for engine, folder in ENGINES.items():
        home = root / "src" / "charter" / "engines" / folder
        files = [m.path for m in modules if home not in m.path.parents and f'"{engine}"' in m.text]
        result[f"names_{engine}"] = Figure(
            f'files outside engines/{folder} with "{engine}"', tuple(str(path.relative_to(root)) for path in files)
        )
    return result


def problems(values: Mapping[str, Figure], limits: Mapping[str, Any]) -> list[str]:
    """Return what fails: figures over their limits, and dead code that waits for no issue."""
    lines = [
        f"{name}: {values[name].value:,}, limit {limit:,} ({values[name].title}); see `tools/house.py --list {name}`"
        for name, limit in limits["limits"].items()
        if values[name].value > limit
    ]
    lines += [f"dead: {place}: use it or delete it" for place in values["dead"].places]
    gone = [name for name in limits["waiting"] if name not in values["waiting"].places]
    return lines + [f"dead: {name} is used or gone: remove it from [waiting] in {LIMITS}" for name in gone]


def advice(values: Mapping[str, Figure], limits: Mapping[str, Any]) -> list[str]:
    """Return which limits to lower, since their figures have fallen."""
    return [
        f"{name}: lower its limit in {LIMITS} from {limit:,} to {values[name].value:,}"
        for name, limit in limits["limits"].items()
        if values[name].value < limit
    ]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print the figures of a repository; return 1 where `--check` finds a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    parser.add_argument("--list", metavar="FIGURE", help="the places that a figure counts")
    parser.add_argument("--check", action="store_true", help="compare with the limits")
    options = parser.parse_args(arguments)
    limits = tomllib.loads((root / LIMITS).read_text())
    values = figures(root, limits["public"], limits["waiting"])
    if options.list:
        print("\n".join(values[options.list].places))
        return 0
    if options.json:
        print(json.dumps({name: figure.value for name, figure in values.items()}, indent=2))
    else:
        for name, figure in values.items():
            print(f"{name:20} {figure.value:>8,}  {figure.title}")
    failures = problems(values, limits) if options.check else []
    for line in [*failures, *(advice(values, limits) if options.check else [])]:
        print(line, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
