"""Reads command lines as OpenRLHF's programs do; run by the interpreter of an environment that holds OpenRLHF.

Its parsers stand under `if __name__ == "__main__"`, below imports that need a GPU. So the block is taken from the
installed file and run as it stands, with the real argparse and the real openrlhf.utils.config, up to where it would
train. Standard input: a JSON list of {"module", "words"}; output: a JSON list of {"options"} or {"error"}.
"""

import argparse
import ast
import contextlib
import importlib.util
import io
import json
import math
import os
import runpy
import sys
import tempfile
import types
from datetime import datetime
from pathlib import Path


def _package() -> Path:
    spec = importlib.util.find_spec("openrlhf")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _without_torch(package: Path) -> None:
    """`openrlhf.utils` imports torch and transformers; a bare package in its place still holds the real `config`."""
    bare = types.ModuleType("openrlhf.utils")
    bare.__path__ = [str(package / "utils")]
    sys.modules["openrlhf.utils"] = bare


def _main_block(path: Path) -> ast.Module:
    """The statements under `if __name__ == "__main__"`, without the last one, which trains."""
    tree = ast.parse(path.read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.dump(node.test)]
    assert len(blocks) == 1, path
    *statements, last = blocks[0].body
    assert ast.unparse(last) == "train(args)", ast.unparse(last)
    return ast.Module(body=statements, type_ignores=[])


def _run(block: ast.Module, scope: dict[str, object]) -> dict[str, object]:
    """The names that the statements leave behind."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "block.py"
        path.write_text(ast.unparse(block))
        return runpy.run_path(str(path), init_globals=scope, run_name="__main__")


def _plain(value: object) -> object:
    return (
        {key: _plain(item) for key, item in vars(value).items()} if isinstance(value, types.SimpleNamespace) else value
    )


def _read(package: Path, module: str, words: list[str]) -> dict[str, object]:
    path = package / "cli" / f"{module.rpartition('.')[2]}.py"
    scope = {"argparse": argparse, "os": os, "math": math, "datetime": datetime}
    said = io.StringIO()
    sys.argv = [path.name, *words]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            scope = _run(_main_block(path), scope)
    except SystemExit:
        return {"error": said.getvalue()}
    except (AssertionError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"options": _plain(scope["args"]), "said": said.getvalue()}


def main() -> None:
    """Read every command line of standard input."""
    package = _package()
    _without_torch(package)
    found = [_read(package, item["module"], item["words"]) for item in json.load(sys.stdin)]
    json.dump(found, sys.stdout, default=str)


if __name__ == "__main__":
    main()
