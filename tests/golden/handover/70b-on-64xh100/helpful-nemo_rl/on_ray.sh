#!/usr/bin/env bash
# Run on every node with NODE_RANK and MASTER_ADDR set; the arguments are the trainer's command, its interpreter first.
set -euo pipefail
python=$1
if [ "$NODE_RANK" -ne 0 ]; then
    exec "$python" -m ray.scripts.scripts start --address="$MASTER_ADDR:${RAY_PORT:-6379}" --num-gpus=8 --block
fi
"$python" -m ray.scripts.scripts start --head --port="${RAY_PORT:-6379}" --num-gpus=8
trap '"$python" -m ray.scripts.scripts stop' EXIT
"$python" - <<'WAIT'
import time
import ray
ray.init(address="auto")
while ray.cluster_resources().get("GPU", 0) < 64:
    time.sleep(5)
WAIT
RAY_ADDRESS=auto "$@"
