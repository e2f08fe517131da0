"""calculon's own search over groups of layouts of GPT-3 175B, in random order, for as long as it is given.

    python calculon_groups.py CHECKOUT CPU_SECONDS

Run by search_gpt3_175b.py in an environment that has what calculon imports (psutil). Its logging is disabled, since
most of its time would go into records that nobody reads. The last line is one JSON object.
"""

import importlib
import itertools
import json
import logging
import random
import sys
import time
from pathlib import Path
from typing import Any

GPUS, BATCH = 4096, 1536
NO_TIER = {"GiB": 0, "GBps": 32, "MB_efficiency": [[0, 1.0]]}
"""Without the offload tier."""


def groups(llm: Any, search: Any, app: Any, pick: Any) -> list[tuple[Any, ...]]:
    """The groups that calculon's own command searches, one process each."""
    settings = []
    for tensor in llm.get_all_tensor_parallelisms(GPUS, app.hidden, app.attn_heads):
        for pipeline in llm.get_all_pipeline_parallelisms(GPUS, tensor, app.num_blocks):
            data = llm.get_data_parallelism(GPUS, tensor, pipeline)
            batch = search.get_batch_size(data, BATCH)
            if batch is None:
                continue
            chunks = llm.get_valid_pipeline_interleavings(app.num_blocks, pipeline)
            modes, kinds = ("full", "attn_only", "none"), ("ar", "p2p_rs_ag", "rs_ag")
            ways = itertools.product(chunks, modes, pick(data > 1, [True, False], [False]), kinds)
            settings += [(tensor, pipeline, data, way[0], batch, *way[1:]) for way in ways]
    return settings


def main() -> None:
    """Search as many groups as the time allows."""
    root, limit = Path(sys.argv[1]), float(sys.argv[2])
    sys.path.insert(0, str(root))
    logging.disable(logging.CRITICAL)
    io, system, util = (importlib.import_module(f"calculon.{name}") for name in ("io", "system", "util"))
    llm = importlib.import_module("calculon.llm").Llm
    search = importlib.import_module("calculon.llm.optimal_execution").OptimalExecution
    app = llm.Application(io.read_json_file(str(root / "models" / "gpt3-175B.json")))
    machine = system.System({**io.read_json_file(str(root / "systems" / "a100_80g.json")), "mem2": NO_TIER})
    questions = groups(llm, search, app, util.pick)
    random.Random(7).shuffle(questions)
    start, ran, feasible, best, done = time.process_time(), 0, 0, 0.0, 0
    for group in questions:
        if time.process_time() - start > limit:
            break
        setting = (False, 1, False, GPUS, BATCH, "float16", app, machine)
        result = search.search(*setting, *group, [True], True, True, True)
        ran, feasible, done = ran + result[1], feasible + result[2], done + 1
        best = max([best, *(item[0] for item in result[0])])
    figures = {"executions": ran, "feasible": feasible, "cpu_seconds": time.process_time() - start}
    figures |= {"groups": done, "of_groups": len(questions), "best_samples_per_second": best}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
