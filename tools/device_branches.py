"""Branches on the kind of device in the native engine, and the test that goes through each without a GPU.

    .venv/bin/python tools/device_branches.py           # list them
    .venv/bin/python tools/device_branches.py --check   # 1 where one has no test, or a test is named in vain

A line of the engine that only an accelerator reaches can be wrong for months. So each function with such a branch
stands in tools/device_branches.toml with a test file that makes its condition true: on fake tensors, on torch's meta
device, or with the function that asks replaced.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ("models", "train", "inference", "evaluate")
"""Packages of the native engine."""
BRANCH = re.compile(
    r"""\.is_cuda\b|\.type\s*[!=]=\s*["'](?:cuda|cpu)["']|\bis_queued\(|\btorch\.cuda\.|\bon_accelerator\b"""
)
TABLE = ROOT / "tools" / "device_branches.toml"


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Names of functions and methods of a file, innermost last, with their first and last line."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
        for item in ast.iter_child_nodes(node):
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{item.name}"
                if not isinstance(item, ast.ClassDef):
                    yield name, item.lineno, item.end_lineno or item.lineno
                yield from below(item, f"{name}.")

    return below(ast.parse(path.read_text(encoding="utf-8")), "")


def branches(root: Path = ROOT) -> dict[str, list[int]]:
    """Lines that ask for the kind of device, by `path::function`; at the top of a module by `path`."""
    places: dict[str, list[int]] = {}
    for package in ENGINE:
        for path in sorted((root / "src" / "charter" / package).rglob("*.py")):
            spans = list(functions(path))
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if not BRANCH.search(line.partition("#")[0]) or line.lstrip().startswith("def is_queued"):
                    continue
                inside = [name for name, first, last in spans if first <= number <= last]
                place = path.relative_to(root).as_posix()
                places.setdefault(f"{place}::{inside[-1]}" if inside else place, []).append(number)
    return places


def problems(root: Path = ROOT) -> list[str]:
    """Return a line for each branch that the table lacks, and for each entry that it has in vain."""
    tested: dict[str, str] = tomllib.loads((root / TABLE.relative_to(ROOT)).read_text(encoding="utf-8"))["tests"]
    present = branches(root)
    lacking = [
        f"{place}: a branch on the device without a test in {TABLE.name}" for place in present if place not in tested
    ]
    vain = [f"{place}: no branch on the device is there any more" for place in tested if place not in present]
    for place, test in tested.items():
        module = Path(place.partition("::")[0]).stem
        file = root / test
        if not file.is_file():
            vain.append(f"{place}: {test} does not exist")
        elif module not in file.read_text(encoding="utf-8"):
            vain.append(f"{place}: {test} never names {module}")
    return [*lacking, *vain]


def main() -> int:
    """List the branches, or check the table."""
    if "--check" not in sys.argv:
        for place, lines in branches().items():
            print(place, *lines)
        return 0
    wrong = problems()
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
