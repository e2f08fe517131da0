"""Write the map of the house into CONTRIBUTING.md: one line for every package, with the programs in it."""

import ast
import inspect
import tokenize
from pathlib import Path

from generated import write_part

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "charter"
PAGE = ROOT / "CONTRIBUTING.md"
BEFORE_A_DOCSTRING = (tokenize.COMMENT, tokenize.NL)
PROGRAM = '\nif __name__ == "__main__":'


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring, empty when it has none."""
    with path.open(encoding="utf-8") as file:
        tokens = (token for token in tokenize.generate_tokens(file.readline) if token.type not in BEFORE_A_DOCSTRING)
        first = next(tokens)
    docstring = ast.literal_eval(first.string) if first.type == tokenize.STRING else ""
    return inspect.cleandoc(docstring).partition("\n")[0]


def layers() -> list[str]:
    """List the packages in the order of the layers in `.importlinter`, the highest first."""
    text = (ROOT / ".importlinter").read_text().partition("layers =")[2].partition("exhaustive")[0]
    return text.replace("|", " ").replace(":", " ").split()


def programs(package: Path) -> list[str]:
    """List the modules of a package that run as processes of their own."""
    modules = (path for path in sorted(package.rglob("*.py")) if PROGRAM in path.read_text())
    return [path.relative_to(package).with_suffix("").as_posix() for path in modules]


def package_line(package: Path) -> str:
    """Describe one package: what its docstring says, and its programs."""
    inside = ", ".join(f"`{name}`" for name in programs(package))
    line = f"- **`{package.name}/`** {first_line(package / '__init__.py')}"
    return f"{line} Runs: {inside}." if inside else line


def module_map() -> str:
    """Render the map as Markdown, in the order of the layers."""
    lines: list[str] = []
    for name in layers():
        if (PACKAGE / name / "__init__.py").exists():
            lines.append(package_line(PACKAGE / name))
        elif (PACKAGE / f"{name}.py").exists():
            lines.append(f"- **`{name}.py`** {first_line(PACKAGE / f'{name}.py')}")
    return "\n".join(["", *lines, ""])


if __name__ == "__main__":
    write_part(PAGE, module_map())
