"""Hand command lines to Megatron-LM's own parser and checks: tools/engine_schemas/megatron_validate.py CHECKOUT.

Standard input: a JSON list of {"name", "world_size", "environment", "words"}; printed is a line for each, and the exit
code is 1 where one was refused. Where there is no accelerator, what its checks ask of one is answered as an H100 would.
Run by hand, by an interpreter that has torch, triton and packaging; continuous integration has no checkout.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from megatron_lm import parser_of

HOPPER = (9, 0)


def main(checkout: str) -> int:
    """How many were refused, as an exit code."""
    parser_of(Path(checkout))
    if not torch.cuda.is_available():
        torch.cuda.get_device_capability = lambda *_args: HOPPER
        vars(torch.cuda)["get_device_properties"] = lambda *_args: SimpleNamespace(major=HOPPER[0], minor=HOPPER[1])
    refused = [item["name"] for item in json.load(sys.stdin) if not _accepted(item)]
    return 1 if refused else 0


def _accepted(item: dict[str, Any]) -> bool:
    from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args

    os.environ |= {"RANK": "0", "WORLD_SIZE": str(item["world_size"]), **item["environment"]}
    sys.argv = ["pretrain_gpt.py", *item["words"]]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            checked = validate_args(parse_args())
            checked.apply_rope_fusion = False  # it asks for Transformer Engine, which needs an accelerator
            core_transformer_config_from_args(checked)
    except (SystemExit, AssertionError, ValueError, RuntimeError) as error:
        print(f"{item['name']}: refused: {type(error).__name__} {error} {said.getvalue()[-300:]}")
        return False
    warned = [line for line in said.getvalue().splitlines() if "warn" in line.lower() or "setting" in line.lower()]
    print(f"{item['name']}: accepted; {warned}")
    return True


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
