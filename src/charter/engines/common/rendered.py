"""Output of a renderer: files, a command, the mapping, and what can be relied on when it is resumed.

A trainer on a Ray cluster that exists for it alone is one script, run on every node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from charter.engines.common.mapping import MappedField
from charter.engines.common.request import Handover

Guarantee = Literal["bit_exact", "same_data_order", "best_effort"]
"""Of a run that was killed and resumed by the engine's own checkpoints. `bit_exact`: the weights of an undisturbed
run. `same_data_order`: every row is seen once and in order, numbers may differ. `best_effort`: nothing is promised."""


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Guarantee of a run of this engine that is killed and goes on from its own checkpoint."""

    guarantee: Guarantee
    reason: str
    """In words: what is restored and what is not."""
    source: str
    """Where that was read or measured."""


@dataclass(frozen=True, kw_only=True)
class RenderedRun:
    """One stage as an engine's configuration."""

    files: Mapping[str, str]
    """Path below the work directory -> text."""
    command: tuple[str, ...]
    """What a node runs, in the work directory. `python` stands for the engine's interpreter. Of several nodes each runs
    it with `NODE_RANK`, `MASTER_ADDR` and `MASTER_PORT` set, written `${NODE_RANK}` here. `${ENGINE_PYTHON}` is the
    interpreter within a word, for an engine whose configuration has to name it."""
    mapping: tuple[MappedField, ...]
    resume: Resume
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    slices: tuple[str, int] | None = None
    """Name and number of the TPU slices that are rented as wholes; their hosts find each other without an address."""
    formulas: tuple[str, ...] = ()
    """Names of the formulas that the options of a loss mean (`formulas.py`)."""
    notes: tuple[str, ...] = ()
    """What somebody who starts it by hand has to know."""


RAY_SCRIPT = "on_ray.sh"
RAY_PORT = 6379
RAY_TOKEN = "ray_token"
LOOK_SECONDS = 5


def ray_script(handover: Handover) -> str:
    """Node 0 starts Ray and, when all accelerators are there, the trainer; the others serve it until it ends.

    Each ends the Ray that it has started and no other: `ray stop` would end those of other jobs on its node too. Ray
    gets a token, since without one whoever reaches its port may run what they like.
    """
    return f"""\
#!/usr/bin/env bash
# Run on every node with NODE_RANK and MASTER_ADDR set; the arguments are the trainer's command, its interpreter first.
set -euo pipefail
python=$1 port="${{RAY_PORT:-{RAY_PORT}}}"
export RAY_AUTH_MODE="${{RAY_AUTH_MODE:-token}}" RAY_AUTH_TOKEN_PATH="${{RAY_AUTH_TOKEN_PATH:-$PWD/{RAY_TOKEN}}}"
export RAY_USAGE_STATS_ENABLED="${{RAY_USAGE_STATS_ENABLED:-0}}"
start=("$python" -m ray.scripts.scripts start --num-gpus={handover.per_node} --block)
there() {{ (exec 3<>"/dev/tcp/$MASTER_ADDR/$port") 2>/dev/null; }}
if [ "$NODE_RANK" -ne 0 ]; then
    until there; do sleep {LOOK_SECONDS}; done
    "${{start[@]}}" --address="$MASTER_ADDR:$port" &
    ray=$!
    # Left to itself, Ray would wait a minute for a first node that has ended.
    while there && kill -0 $ray 2>/dev/null; do sleep {LOOK_SECONDS}; done
    kill $ray 2>/dev/null || true
    wait $ray || true
    exit 0
fi
[ -s "$RAY_AUTH_TOKEN_PATH" ] || (umask 077; od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH")
"${{start[@]}}" --head --port="$port" &
ray=$!
trap 'kill $ray 2>/dev/null || true; wait $ray || true' EXIT
until there; do kill -0 $ray; sleep {LOOK_SECONDS}; done
export RAY_ADDRESS="127.0.0.1:$port"
"$python" - <<'WAIT'
import time
import ray
ray.init()
while (there := ray.cluster_resources().get("GPU", 0)) < {handover.num_accelerators}:
    print(f"{{there:g}} of {handover.num_accelerators} accelerators have come", flush=True)
    time.sleep({LOOK_SECONDS})
WAIT
"$@"
"""
