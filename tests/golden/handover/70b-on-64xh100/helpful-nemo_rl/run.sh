#!/bin/bash
# Stage helpful in nemo_rl: runs on each of 8 nodes.
# PYTHON is the interpreter of the environment that holds the engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export NODE_RANK="${NODE_RANK:?number of this node, from 0}"
export MASTER_ADDR="${MASTER_ADDR:?address of node 0}"
export MASTER_PORT="${MASTER_PORT:-29500}"
exec bash on_ray.sh "${PYTHON:-python}" "${NEMO_RL_DIR}/examples/run_sft.py" --config ./sft.yaml
