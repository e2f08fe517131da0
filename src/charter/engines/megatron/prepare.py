"""Preparation of Megatron-LM's first start: weights and tokenizer in its forms, texts as tokens."""

import json
import shlex

from charter.engines.common.request import Handover
from charter.engines.megatron.training import DATA, START, TOKENIZER
from charter.spec.stage import PretrainStage

SCRIPT, PROGRAM = "prepare.sh", "prepare.py"
TOKENIZER_WORKERS = 8


def prepare_files(handover: Handover) -> dict[str, str]:
    """A script to run once on one node, and the program that it calls."""
    return {SCRIPT: _script(handover), PROGRAM: _program(handover)}


def _script(handover: Handover) -> str:
    work = handover.paths.work
    lines = [
        "#!/usr/bin/env bash",
        "# Once, before the first start: weights, tokenizer and tokens as Megatron-LM reads them.",
        "set -euo pipefail",
        f'"${{PYTHON:-python}}" {PROGRAM}',
    ]
    if isinstance(handover.stage, PretrainStage):
        options = {
            "--input": handover.paths.data["data"],
            "--json-keys": "text",
            "--output-prefix": f"{work}/{DATA}/train",
            "--tokenizer-type": "HuggingFaceTokenizer",
            "--tokenizer-model": f"{work}/{TOKENIZER}",
            "--workers": str(TOKENIZER_WORKERS),
        }
        words = " ".join(f"{option} {shlex.quote(value)}" for option, value in options.items())
        lines.append(f"mkdir -p {shlex.quote(f'{work}/{DATA}')}")
        lines.append(f'"${{PYTHON:-python}}" "${{MEGATRON_DIR}}/tools/preprocess_data.py" {words} --append-eod')
    return "\n".join(lines) + "\n"


def _program(handover: Handover) -> str:
    """Of fine-tuning the tokenizer also gets a name for its padding: the format identity pads with `<unk>`."""
    work, init = handover.paths.work, handover.paths.models["init"]
    lines = [
        "from megatron.bridge import AutoBridge",
        "from transformers import AutoTokenizer",
        "",
        f"INIT = {json.dumps(init)}",
        f"START = {json.dumps(f'{work}/{START}')}",
        f"TOKENIZER = {json.dumps(f'{work}/{TOKENIZER}')}",
        "tokenizer = AutoTokenizer.from_pretrained(INIT)",
    ]
    if handover.stage.kind == "sft":
        lines += [
            "if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:",
            '    raise SystemExit("the tokenizer needs a padding token that no text holds; it is masked in the loss")',
            "tokenizer.unk_token = tokenizer.pad_token",
        ]
    lines += ["tokenizer.save_pretrained(TOKENIZER)", "AutoBridge.import_ckpt(INIT, START)"]
    return "\n".join(lines) + "\n"
