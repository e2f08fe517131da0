#!/bin/bash
# Stage ppo in verl.
# PYTHON is the interpreter of the environment that holds the engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export NODE_RANK="${NODE_RANK:-0}" MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
export MASTER_PORT="${MASTER_PORT:-29500}"
export VERL_FILE_LOGGER_PATH=./metrics/from_0.jsonl
exec "${PYTHON:-python}" -m verl.trainer.main_ppo --config-dir . --config-name ppo hydra.run.dir=. hydra.output_subdir=null
