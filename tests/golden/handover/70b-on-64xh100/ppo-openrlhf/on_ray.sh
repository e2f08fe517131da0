#!/usr/bin/env bash
# Run on every node with NODE_RANK and MASTER_ADDR set; the arguments are the trainer's command, its interpreter first.
set -euo pipefail
python=$1 port="${RAY_PORT:-6379}"
export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}" RAY_AUTH_TOKEN_PATH="${RAY_AUTH_TOKEN_PATH:-$PWD/ray_token}"
export RAY_USAGE_STATS_ENABLED="${RAY_USAGE_STATS_ENABLED:-0}"
start=("$python" -m ray.scripts.scripts start --num-gpus=8 --block)
there() { (exec 3<>"/dev/tcp/$MASTER_ADDR/$port") 2>/dev/null; }
if [ "$NODE_RANK" -ne 0 ]; then
    until there; do sleep 5; done
    "${start[@]}" --address="$MASTER_ADDR:$port" &
    ray=$!
    # Left to itself, Ray would wait a minute for a first node that has ended.
    while there && kill -0 $ray 2>/dev/null; do sleep 5; done
    kill $ray 2>/dev/null || true
    wait $ray || true
    exit 0
fi
[ -s "$RAY_AUTH_TOKEN_PATH" ] || (umask 077; od -An -N32 -tx1 /dev/urandom | tr -d ' 
' > "$RAY_AUTH_TOKEN_PATH")
"${start[@]}" --head --port="$port" &
ray=$!
trap 'kill $ray 2>/dev/null || true; wait $ray || true' EXIT
until there; do kill -0 $ray; sleep 5; done
export RAY_ADDRESS="127.0.0.1:$port"
"$python" - <<'WAIT'
import time
import ray
ray.init()
while (there := ray.cluster_resources().get("GPU", 0)) < 64:
    print(f"{there:g} of 64 accelerators have come", flush=True)
    time.sleep(5)
WAIT
"$@"
