"""Write the map of the house into CONTRIBUTING.md: the first line of the docstring of every module."""

import ast
from functools import cache
from pathlib import Path

from generated import write_part

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "charter"
PAGE = ROOT / "CONTRIBUTING.md"


@cache
def first_line(path: Path) -> str:
    """The first line of a module's docstring, empty when it has none."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n")[0]


def layers() -> list[str]:
    """The packages in the order of the layers in `.importlinter`, the highest first."""
    text = (ROOT / ".importlinter").read_text().partition("layers =")[2].partition("exhaustive")[0]
    return text.replace("|", " ").replace(":", " ").split()


def package_lines(package: Path) -> list[str]:
    """A package's heading and one line for each module in it."""
    lines = [f"- **`{package.name}/`** {first_line(package / '__init__.py')}"]
    for module in sorted(package.rglob("*.py")):
        if module.name != "__init__.py":
            name = module.relative_to(package).with_suffix("").as_posix()
            lines.append(f"  - `{name}`: {first_line(module)}")
    return lines


def module_map() -> str:
    """The map as Markdown, in the order of the layers."""
    lines: list[str] = []
    for name in layers():
        if (PACKAGE / name / "__init__.py").exists():
            lines += package_lines(PACKAGE / name)
        elif (PACKAGE / f"{name}.py").exists():
            lines.append(f"- **`{name}.py`** {first_line(PACKAGE / f'{name}.py')}")
    return "\n".join(["", *lines, ""])


if __name__ == "__main__":
    write_part(PAGE, module_map())
