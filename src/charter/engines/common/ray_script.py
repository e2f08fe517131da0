"""A trainer on a Ray cluster that exists for it alone: one script, run on every node."""

from charter.engines.common.request import Handover

RAY_SCRIPT = "on_ray.sh"
RAY_PORT = 6379


def ray_script(handover: Handover) -> str:
    """Node 0 starts Ray and, when all accelerators are there, the trainer; the others serve it until it ends."""
    gpus = f"--num-gpus={handover.per_node}"
    return f"""\
#!/usr/bin/env bash
# Run on every node with NODE_RANK and MASTER_ADDR set; the arguments are the trainer's command, its interpreter first.
set -euo pipefail
python=$1
if [ "$NODE_RANK" -ne 0 ]; then
    exec "$python" -m ray.scripts.scripts start --address="$MASTER_ADDR:{RAY_PORT}" {gpus} --block
fi
"$python" -m ray.scripts.scripts start --head --port={RAY_PORT} {gpus}
trap '"$python" -m ray.scripts.scripts stop' EXIT
"$python" - <<'WAIT'
import time
import ray
ray.init(address="auto")
while ray.cluster_resources().get("GPU", 0) < {handover.num_accelerators}:
    time.sleep(5)
WAIT
RAY_ADDRESS=auto "$@"
"""
