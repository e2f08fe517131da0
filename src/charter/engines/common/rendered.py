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


def ray_script(handover: Handover) -> str:
    """Node 0 starts Ray and, when all accelerators are there, the trainer; the others serve it until it ends."""
    gpus = f"--num-gpus={handover.per_node}"
    return f"""\
#!/usr/bin/env bash
# Run on every node with NODE_RANK and MASTER_ADDR set; the arguments are the trainer's command, its interpreter first.
set -euo pipefail
python=$1
if [ "$NODE_RANK" -ne 0 ]; then
    exec "$python" -m ray.scripts.scripts start --address="$MASTER_ADDR:${{RAY_PORT:-{RAY_PORT}}}" {gpus} --block
fi
"$python" -m ray.scripts.scripts start --head --port="${{RAY_PORT:-{RAY_PORT}}}" {gpus}
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
