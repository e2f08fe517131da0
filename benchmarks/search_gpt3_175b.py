"""The layout space of GPT-3 175B on 4,096 A100-80GB, batch 1,536: as calculon lays it out, with Charter's physics.

    .venv/bin/python benchmarks/search_gpt3_175b.py [--peers DIR] [--full] [--sample SECONDS]

The axes are those of calculon's `optimal_execution.py` without its offload tier, 1,081,872 layouts: tensor and
pipeline parallelism, interleaving, micro-batch, recomputation, sharded optimizer, how tensor parallelism communicates,
whether its gathers are repeated, what overlaps, and which network each group uses. Assignments of groups to networks
that do not exist (more ranks on NVLink than a node has) are pruned by rule, everything else is evaluated in full: peak
bytes and seconds. One core: no library here may start threads, and time is CPU time of the whole process, imports
included. With `--peers DIR` (a folder that holds a checkout `calculon/`), or CALCULON_DIR, calculon searches a random
sample of its groups in the same run, its logging disabled; `--full` lets it search all. The last line is one JSON
object.
"""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import resource  # noqa: E402
import shlex  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from itertools import product  # noqa: E402
from math import exp  # noqa: E402
from pathlib import Path  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-peers"
PEER = ROOT / "benchmarks" / "calculon_groups.py"
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402

from charter.catalog import accelerators  # noqa: E402
from charter.physics.columns import Array, Layouts, array  # noqa: E402
from charter.physics.devices import DeviceColumns  # noqa: E402
from charter.physics.matrix_products import ProductColumns  # noqa: E402
from charter.physics.memory import factored_memory  # noqa: E402
from charter.physics.memory_profiles import MEGATRON_STACK, MemoryJob  # noqa: E402
from charter.physics.memory_shape import MemoryShape  # noqa: E402
from charter.physics.micro_batch import NOTHING_DONE, GroupLinks, StepInputs  # noqa: E402
from charter.physics.precision import MEGATRON  # noqa: E402
from charter.physics.stacks import PROFILES, StackColumns, StepJob  # noqa: E402
from charter.physics.step_seconds import SEQUENCE_PARALLEL_TRAFFIC  # noqa: E402
from charter.physics.step_time import factored_seconds  # noqa: E402
from charter.plan.choose import undominated  # noqa: E402
from charter.plan.knowledge import (  # noqa: E402
    TRAINING,
    engine_knowledge,
    memory_of_stack,
    shipped,
)
from charter.plan.layout_search import ALIKE, RATIO_SHARE  # noqa: E402
from charter.plan.layout_space import divisors  # noqa: E402
from charter.spec.architecture import Architecture  # noqa: E402

GPT3 = Architecture(
    hidden_size=12288, num_layers=96, num_heads=96, intermediate_size=49152, vocab_size=51200, gated_mlp=False
)
GPUS, BATCH, SEQ_LEN, NODE = 4096, 1536, 2048, 8
LAYOUTS = 1_081_872
NETWORK_BYTES_PER_SECOND_PER_NODE = 8 * 25e9
EXPOSED = {"none": 1.0, "pipe": 0.6, "ring": 0.5}
"""Share of tensor-parallel traffic that delays: all; that of Megatron-Core's overlap (physics/stacks.py); judgement."""
RECOMPUTE = ("full", "attn_only", "none")
CODES = {"none": 0.0, "attn_only": 1.0, "full": 2.0}
COMMUNICATION = ("ar", "p2p_rs_ag", "rs_ag")
NAMES = (
    "tensor", "pipeline", "data", "interleave", "micro_batch", "accumulation", "recompute", "sharded", "comm", "redo",
    "data_overlap", "tensor_overlap", "tensor_net", "pipeline_net", "data_net",
)  # fmt: skip
CHUNK = 1 << 16


def space() -> Array:
    """Every layout as a column of small numbers, in the order of NAMES."""
    blocks = [_block(*split) for split in _splits()]
    return np.concatenate(blocks, axis=1)


def _splits() -> Iterator[tuple[int, int, int, int]]:
    layers = GPT3.num_layers
    for tensor in (d for d in divisors(GPUS) if GPT3.hidden_size % d == 0 and GPT3.num_heads % d == 0):
        for pipeline in divisors(min(GPUS // tensor, layers)):
            if GPUS % (tensor * pipeline) or layers % pipeline:
                continue
            data = GPUS // (tensor * pipeline)
            if data > BATCH:
                continue
            for interleave in divisors(layers // pipeline) if pipeline > 1 else (1,):
                yield tensor, pipeline, data, interleave


def _block(tensor: int, pipeline: int, data: int, interleave: int) -> Array:
    """All layouts of one split."""
    share = BATCH // data
    micro = [size for size in divisors(share) if size * SEQ_LEN % tensor == 0]
    ways = [
        (CODES[mode], sharded, COMMUNICATION.index(comm), redo)
        for mode, sharded, comm in product(RECOMPUTE, (1, 0) if data > 1 else (0,), COMMUNICATION)
        for redo in ((1, 0) if comm == "rs_ag" and mode != "full" else (0,))
    ]
    overlaps = list(product((1, 0) if data > 1 else (0,), range(3) if tensor > 1 else (0,)))
    nets = list(product(*(range(2) if degree > 1 else (0,) for degree in (tensor, pipeline, data))))
    rows = [
        (tensor, pipeline, data, interleave, size, share // size, *way, *overlap, *net)
        for size, way, overlap, net in product(micro, ways, overlaps, nets)
    ]
    return np.array(rows, dtype=np.float64).T


def exists(table: dict[str, Array]) -> Array:
    """Return where the groups on NVLink fit into a node and fill it evenly."""
    on_nvlink = np.ones_like(table["tensor"])
    for degree, net in (("tensor", "tensor_net"), ("pipeline", "pipeline_net"), ("data", "data_net")):
        on_nvlink = on_nvlink * np.where(table[net] == 0, table[degree], 1.0)
    return array((on_nvlink <= NODE) & (np.mod(NODE, on_nvlink) == 0))


@dataclass(frozen=True, kw_only=True)
class Physics:
    """The constants of all layouts."""

    model: ProductColumns
    device: DeviceColumns
    stack: StackColumns
    shape: MemoryShape

    @classmethod
    def of_2022(cls) -> "Physics":
        """Megatron-LM of 2022 on A100: unfused attention, so that recomputing attention alone is worth something."""
        accelerator = accelerators.get("A100-80GB")
        device = DeviceColumns.of(accelerator).with_network(NETWORK_BYTES_PER_SECOND_PER_NODE, NODE, NODE)
        job = MemoryJob(
            architecture=GPT3,
            seq_len=SEQ_LEN,
            precision=MEGATRON,
            profile=MEGATRON_STACK,
            fused_attention=False,
            dropout=True,
            accelerator=accelerator,
        )
        profile = PROFILES["megatron-2022"]
        return cls(
            model=ProductColumns.of(GPT3),
            device=device,
            stack=StackColumns.of(replace(profile, update_bytes=2 * MEGATRON.state_bytes)),
            shape=MemoryShape.of(job),
        )


def evaluate(table: dict[str, Array], physics: Physics) -> tuple[Array, Array]:
    """Seconds of a step and peak bytes of every layout."""
    at = _layouts(table)
    gathered = (table["comm"] == 2) & (table["redo"] == 0) & (table["recompute"] < CODES["full"])
    tensor_exposed = array(list(EXPOSED.values()))[table["tensor_overlap"].astype(int)]
    tensor_exposed = tensor_exposed / np.where(gathered, SEQUENCE_PARALLEL_TRAFFIC, 1.0)
    given = StepInputs(
        model=physics.model,
        device=physics.device,
        job=StepJob(layouts=at, seq=array(SEQ_LEN)),
        stack=replace(
            physics.stack,
            tensor_exposed=array(tensor_exposed),
            data_hidden=table["data_overlap"],
            send_exposed=np.where(table["comm"] == 0, table["tensor"], 1.0),
        ),
        work=NOTHING_DONE,
        constants=engine_knowledge("megatron", shipped()).training,
        links=GroupLinks(
            tensor=_on(physics.device, table["tensor_net"]),
            pipeline=_on(physics.device, table["pipeline_net"]),
            data=_on(physics.device, table["data_net"]),
        ),
    )
    ways = 2 * (3 * table["tensor_overlap"] + table["tensor_net"]) + gathered
    seconds = factored_seconds(given, beside=[ways])
    gathered_bytes = 2 * physics.shape.compute_bytes * physics.shape.hidden * (at.tensor - 1)
    shape = replace(physics.shape, replicated=physics.shape.replicated + np.where(gathered, gathered_bytes, 0.0))
    constants = memory_of_stack("megatron", "training memory").training
    peaks = factored_memory(shape, at, constants, lambda memory, _: {"peak": memory.total}, beside=[array(gathered)])
    return seconds, peaks["peak"]


def _layouts(table: dict[str, Array]) -> Layouts:
    one, none = np.ones_like(table["tensor"]), np.zeros_like(table["tensor"])
    return Layouts(
        data=table["data"],
        tensor=table["tensor"],
        pipeline=table["pipeline"],
        context=one,
        expert=one,
        sequence_parallel=array((table["comm"] == 2) & (table["tensor"] > 1)),
        zero=table["sharded"],
        micro_batch=table["micro_batch"],
        accumulation=table["accumulation"],
        recompute=table["recompute"],
        interleave=table["interleave"],
        offload_optimizer=none,
        offload_parameters=none,
        replicas=one,
    )


def _on(device: DeviceColumns, net: Array) -> DeviceColumns:
    """The links of a group on NVLink alone (0), or on its network cards alone (1)."""
    reach = np.where(net > 0, 1.0, 1e9)
    return replace(device, domain=reach, node=reach)


def search() -> dict[str, object]:
    """Everything that is asked, and what it took."""
    physics, columns = Physics.of_2022(), space()
    if columns.shape[1] != LAYOUTS:
        raise SystemExit(f"the space has {columns.shape[1]:,} layouts; calculon's has {LAYOUTS:,}")
    table = dict(zip(NAMES, columns, strict=True))
    rows = np.flatnonzero(exists(table))
    seconds, peak = np.empty(rows.size), np.empty(rows.size)
    for start in range(0, rows.size, CHUNK):
        part = {name: column[rows[start : start + CHUNK]] for name, column in table.items()}
        seconds[start : start + CHUNK], peak[start : start + CHUNK] = evaluate(part, physics)
    per_sample = seconds / (table["data"] * table["accumulation"] * table["micro_batch"])[rows]
    usable = accelerators.get("A100-80GB").memory_bytes
    usable *= exp(-memory_of_stack("megatron", "training memory").half_width)
    fits = peak <= usable
    no_groups = np.zeros((int(fits.sum()), 0), dtype=np.intp)
    ranked = np.where(fits, per_sample, np.inf)
    width = exp(RATIO_SHARE * shipped().half_width(TRAINING, "training dense"))
    least = per_sample[fits].min()
    tied, alike = np.flatnonzero(ranked <= width * least), np.flatnonzero(ranked <= ALIKE * least)
    order = [table[name][rows[alike]] for name in ("tensor", "pipeline")]
    taken = alike[np.lexsort((ranked[alike], order[0], order[1]))[0]]

    def told(row: int) -> dict[str, object]:
        numbers = {name: int(table[name][rows[row]]) for name in NAMES}
        named = {"recompute": next(m for m, c in CODES.items() if c == numbers["recompute"])}
        named |= {"comm": COMMUNICATION[numbers["comm"]], "tensor_overlap": list(EXPOSED)[numbers["tensor_overlap"]]}
        figures = {"samples_per_second": round(1 / per_sample[row], 2), "peak_gib": round(peak[row] / 2**30, 2)}
        return {**numbers, **named, **figures}

    return {
        "layouts": columns.shape[1],
        "evaluated": int(rows.size),
        "pruned": int(columns.shape[1] - rows.size),
        "feasible": int(fits.sum()),
        "best": told(int(np.argmin(ranked))),
        "splits_least_of_equally_fast": told(int(taken)),
        "near_tied": int(tied.size),
        "near_tied_within": round(width - 1, 4),
        "pareto_front": int(undominated(np.column_stack([per_sample[fits], peak[fits]]), no_groups).size),
    }


def peer(folder: Path, seconds: float) -> dict[str, object]:
    """calculon's own search over as many of its groups, in random order, as the time allows."""
    if not (ENVIRONMENT / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    python = str(ENVIRONMENT / "bin" / "python")
    if subprocess.run([python, "-c", "import psutil"], capture_output=True, check=False).returncode:
        subprocess.run([python, "-m", "pip", "install", "-q", "psutil"], check=True, stdout=sys.stderr)
    process = subprocess.run(
        [python, str(PEER), str(folder), str(seconds)], capture_output=True, text=True, check=False
    )
    if process.returncode:
        return {"error": process.stderr.strip().splitlines()[-1] if process.stderr else "no output"}
    answer: dict[str, object] = json.loads(process.stdout.strip().splitlines()[-1])
    return answer | {"executions_per_cpu_second": answer["executions"] / answer["cpu_seconds"]}  # type: ignore[operator]


def main() -> None:
    """Search, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=None)
    parser.add_argument("--sample", type=float, default=20.0, help="CPU-seconds that calculon is given")
    parser.add_argument("--full", action="store_true", help="let calculon search its whole space")
    options = parser.parse_args()
    wall = time.perf_counter()
    figures = search()
    cpu = time.process_time()
    figures |= {
        "seconds": round(cpu, 3),
        "wall_seconds": round(time.perf_counter() - wall, 3),
        "layouts_per_cpu_second": round(int(str(figures["evaluated"])) / cpu),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    folder = options.peers / "calculon" if options.peers else Path(os.environ.get("CALCULON_DIR", "nowhere"))
    if folder.is_dir():
        calculon = peer(folder, 1e9 if options.full else options.sample)
        figures["calculon"] = calculon
        if "executions_per_cpu_second" in calculon:
            ratio = float(str(figures["layouts_per_cpu_second"])) / float(str(calculon["executions_per_cpu_second"]))
            figures["ratio_per_cpu_second"] = round(ratio, 1)
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "used_cores": 1}
    print(json.dumps(figures | {"command": shlex.join(["python", *sys.argv]), "machine": machine}))


if __name__ == "__main__":
    main()
