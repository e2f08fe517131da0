#!/bin/bash
# Stage helpful in deepspeed.
# PYTHON is the interpreter of the environment that holds the engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export NODE_RANK="${NODE_RANK:-0}" MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
export MASTER_PORT="${MASTER_PORT:-29500}"
export HF_DATASETS_CACHE=./datasets
export TOKENIZERS_PARALLELISM=false
exec "${PYTHON:-python}" -m accelerate.commands.launch --config_file accelerate.yaml -m trl.scripts.sft --config sft.yaml
