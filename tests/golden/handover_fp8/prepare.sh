#!/usr/bin/env bash
# Once, before the first start: weights, tokenizer and tokens as Megatron-LM reads them.
set -euo pipefail
"${PYTHON:-python}" prepare.py
