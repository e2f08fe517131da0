"""Host time of a layer under each layout of the native engine: what its plans add for shards and for split tensors.

Llama layers so small that their products take no time, on one thread, in groups of torch's fake processes whose
collectives answer at once: what is left is what Python and torch's dispatcher take, FSDP2's hooks and DTensor among
it. `token`: of decoding one token with weights that are gathered; `step`: forward and backward. Processor time of this
process, the least of many, in microseconds per layer. The last line is one JSON object.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable

LAYERS, ROWS, PROMPT, TIMES = 32, 2, 16, 40
DEGREES = {"one": {}, "sharded": {"world_size": 2, "zero": 3}, "split": {"world_size": 2, "tensor": 2}}


def microseconds(layout_name: str) -> dict[str, float]:
    """Per layer, in this process."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import LlamaConfig, LlamaForCausalLM

    from charter.inference.generate import new_cache
    from charter.models import parallel
    from charter.models.engine_layout import StageLayout
    from charter.models.ranks import Ranks

    torch.set_num_threads(1)
    layout = StageLayout(**DEGREES[layout_name])
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=LAYERS, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    spread = parallel.Parallel(model)
    if layout.world_size > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world_size)
        cpu, group = torch.device("cpu"), dist.group.WORLD
        ranks = Ranks(world_size=layout.world_size, data_size=layout.data, device=cpu, data_group=group)
        mesh = parallel.split_tensors(model, layout, ranks)
        parallel.shard(model, layout, mesh, ranks, dtype=torch.float32)
        spread = parallel.FsdpParallel(model, frees=parallel.frees_layers(layout), is_first=True)
    ids_LT = torch.randint(0, 256, (ROWS, PROMPT))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids=ids_LT, use_cache=False).logits.sum().backward()

    figures = {"step": least(step)}
    position_L1, cache = torch.full((ROWS, 1), PROMPT), new_cache(config)

    def token() -> None:
        model(input_ids=ids_LT[:, :1], position_ids=position_L1, past_key_values=cache, use_cache=True)

    with torch.no_grad(), spread.gathered() if layout.world_size > 1 else contextlib.nullcontext():
        model(input_ids=ids_LT, past_key_values=cache, use_cache=True)
        figures["token"] = least(token)
    return figures


def least(work: Callable[[], None]) -> float:
    """Microseconds per layer of the quickest of many runs."""
    seconds = []
    for _ in range(TIMES):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return round(min(seconds) / LAYERS * 1e6)


def main() -> None:
    """Measure each layout in a process of its own, and print."""
    if len(sys.argv) > 1:
        print(json.dumps(microseconds(sys.argv[1])))
        return
    figures = {}
    for name in DEGREES:
        command = [sys.executable, "-W", "ignore", __file__, name]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        figures[name] = json.loads(printed.splitlines()[-1])
        print(f"{name}: {figures[name]['token']:,} us for a token, {figures[name]['step']:,} us for a step")
    print(json.dumps({"us_per_layer": figures, "cpus": os.cpu_count(), "architecture": platform.machine()}))


if __name__ == "__main__":
    main()
