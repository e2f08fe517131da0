"""Record which options Megatron-LM's parser knows: megatron_lm.py CHECKOUT COMMIT > schema.json.

Run by an interpreter that has torch, triton and packaging; CHECKOUT is a directory of Megatron-LM at COMMIT.
Facts only: names, whether an option takes values, how many, of which type, from which choices. Continuous integration
has no checkout, so that what Charter renders is checked against this record there.
"""

import argparse
import json
import sys
import typing
from pathlib import Path
from typing import Any


def parser_of(checkout: Path) -> argparse.ArgumentParser:
    """Megatron-LM's own parser, from its own code."""
    if not hasattr(typing, "override"):
        vars(typing)["override"] = lambda method: method  # of Python 3.12; it marks, and does nothing
    sys.path.insert(0, str(checkout))
    from megatron.training.arguments import add_megatron_arguments

    parser: argparse.ArgumentParser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    return parser


def facts_of(action: argparse.Action) -> dict[str, Any]:
    """What an option takes."""
    facts: dict[str, Any] = {"action": type(action).__name__.strip("_")}
    if action.nargs is not None:
        facts["nargs"] = action.nargs
    if action.type is not None:
        facts["type"] = getattr(action.type, "__name__", str(action.type))
    if action.choices is not None:
        facts["choices"] = [getattr(item, "name", item) for item in action.choices]
    return facts


def main(checkout: str, commit: str) -> None:
    """Print the record, an option a line."""
    parser = parser_of(Path(checkout))
    from megatron.core import package_info

    options = {name: facts_of(action) for action in parser._actions for name in action.option_strings}
    options = {name: facts for name, facts in options.items() if name not in ("-h", "--help")}
    version = ".".join(map(str, package_info.VERSION[:3]))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(options[name])}" for name in sorted(options))
    head = f'"repository": "NVIDIA/Megatron-LM", "commit": "{commit}", "version": "{version}"'
    print(f'{{{head}, "options": {{\n{lines}\n}}}}')


if __name__ == "__main__":
    main(*sys.argv[1:])
