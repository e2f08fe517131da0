#!/bin/bash
# Stage helpful in accelerate: runs on each of 8 nodes.
# PYTHON is the interpreter of the environment that holds the engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export NODE_RANK="${NODE_RANK:?number of this node, from 0}"
export MASTER_ADDR="${MASTER_ADDR:?address of node 0}"
export MASTER_PORT="${MASTER_PORT:-29500}"
export HF_DATASETS_CACHE=./datasets
export TOKENIZERS_PARALLELISM=false
exec "${PYTHON:-python}" -m accelerate.commands.launch --config_file accelerate.yaml --machine_rank "${NODE_RANK}" --main_process_ip "${MASTER_ADDR}" --main_process_port "${MASTER_PORT}" -m trl.scripts.sft --config sft.yaml
