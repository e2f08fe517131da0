"""First minutes of the engine on one GPU: does it run strictly, are its bits the same twice, what does it take.

    .venv/bin/python benchmarks/first_gpu.py --output first_gpu.jsonl --budget-seconds 530 [--together]

Call it again with the same output, on the same machine and commit, until it says that nothing is left: what is measured
already is not measured again. Cases are ordered by worth, so that a machine lent for 25 minutes gives the first ones:
steps that must be exact before all, then what exactness costs, attention by backend, packed rows, decoding, the large
model. Every case is a process of its own and ends alone; its line is on the disk as soon as it is measured. A case
takes 120 s at most, and none is begun that might not end within the budget. `--together` computes them in one process:
on a machine whose disk takes 15 s to read torch, that is four times as many in the same minutes.

Needs torch and transformers; no network, no package of attention, no installed Charter. Without a GPU the same cases
run at the size of a test: do that before taking a GPU's time. Weights are random.

Beside what `measured_steps` returns a line has `bits` (the first 16 digits of the SHA-256 over all weights after the
last step, or over the answers), `same_bits` where a case must give those of an earlier one (`like`), `equal` where
answers by graphs were compared with answers without, `tokens_per_s`, and `tflops_6n`: 6 x parameters x tokens per
second, without attention and recomputation, thus a lower bound of what was computed.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

BIG, SMALL, TINY = "Llama-3.1-8B", "Qwen3-0.6B", "charter-tiny"
LONGEST_SECONDS = 120.0
"""Of one case."""
LARGEST_HASHED_PARAMETERS = 2_000_000_000
"""Above it, copying the weights to the host and hashing them takes longer than the steps."""
WARMUP, REPEATS = 2, 5
VARLEN = "varlen"
BACKENDS = ("sdpa causal", "sdpa mask", "varlen", "flex")
Fields = Mapping[str, Any]


def cases(*, on_gpu: bool) -> Iterator[Fields]:
    """The measurements, in order; `name` is what a line of the output is known by."""
    small, big = (SMALL, BIG) if on_gpu else (TINY, TINY)
    long, short = (2048, 512) if on_gpu else (64, 32)
    sft = {"kind": "sft", "model": small, "micro_batch": 4, "seq": long}
    ppo = {
        "kind": "ppo",
        "model": small,
        "micro_batch": 8 if on_gpu else 2,
        "seq": short,
        "prompt_tokens": short // 2,
        "answer_tokens": short // 2,
        "rollout_batch": 32 if on_gpu else 4,
    }
    decode = {
        "kind": "inference",
        "micro_batch": 64 if on_gpu else 8,
        "seq": short + 64,
        "prompt_tokens": short,
        "answer_tokens": 64,
    }
    big_sft = {**sft, "model": big, "micro_batch": 1, "recompute": True}
    big_lora = {**sft, "model": big, "kind": "lora", "lora_rank": 16}
    big_decode = {**decode, "model": big, "precision": "bf16-true"}
    for kind, fields in (("sft", sft), ("ppo", ppo)):
        yield {"name": f"{kind} 1", **fields}
        yield {"name": f"{kind} 2", **fields, "like": f"{kind} 1"}
    yield {"name": "sft not strict", **sft, "strict": False}
    length, counts = (8192, (1, 8, 16)) if on_gpu else (64, (1, 4))
    for backend in BACKENDS:
        for strict in (True, False):
            name = f"attention {backend}{'' if strict else ' not strict'}"
            yield {"name": name, "backend": backend, "tokens": length, "conversations": counts, "strict": strict}
    rows = {"model": small, "rows": 2, "each": 512 if on_gpu else 16, "conversations": 16 if on_gpu else 4}
    for kept_apart in (VARLEN, "sdpa") if on_gpu else ("sdpa",):
        for strict in (True, False):
            name = f"packed {kept_apart}{'' if strict else ' not strict'}"
            yield {"name": name, "kept_apart": kept_apart, **rows, "strict": strict}
    for name, fields in (("answers", {"model": small}), ("8B answers", {"model": big, "precision": "bf16-true"})):
        yield {"name": name, **fields, "answers": 300 if on_gpu else 200}
    for name, fields in (("decode", {**decode, "model": small}), ("8B decode", big_decode)):
        for batch in (1, 8, 64) if on_gpu else (2,):
            sizes = {**fields, "micro_batch": batch, "seq": short + 2 * 64, "answer_tokens": 2 * 64}
            yield {"name": f"{name} {batch}", **sizes}
            yield {"name": f"{name} {batch} without graphs", **sizes, "graphs": False, "like": f"{name} {batch}"}
        yield {"name": name, **fields}
    yield {"name": "rm", **sft, "kind": "rm", "seq": long // 2}
    yield {"name": "lora", **sft, "kind": "lora", "lora_rank": 16}
    yield {"name": "sft recompute", **sft, "recompute": True}
    yield {"name": "8B lora", **big_lora}
    yield {"name": "8B lora not strict", **big_lora, "strict": False}
    yield {"name": "8B sft", **big_sft}
    yield {"name": "8B sft long", **big_sft, "seq": 4 * long}


def measured(fields: Fields, *, on_gpu: bool) -> dict[str, Any]:
    """Measure one case in this process."""
    own = {name: value for name, value in fields.items() if name not in ("name", "strict", "graphs", "like")}
    kinds = {"backend": attention, "kept_apart": packed, "answers": answers_by_graphs}
    measure = next((kinds[name] for name in kinds if name in own), steps)
    with contextlib.ExitStack() as stack:
        if not fields.get("graphs", True):
            from charter.inference import fused

            stack.enter_context(mock.patch.object(fused, "_has_fixed_angles", return_value=False))
        return measure(own, strict=bool(fields.get("strict", True)), on_gpu=on_gpu)


def steps(fields: Fields, *, strict: bool, on_gpu: bool) -> dict[str, Any]:
    """Steps of the engine, with the bits of the weights after them."""
    from measured_steps import child, ppo_case
    from measured_steps.grid import Case

    case, bits = Case(**fields), ""
    timed_steps = child.timed_steps

    def hashing(task: Any, *args: Any, **more: Any) -> list[float]:
        nonlocal bits
        seconds = timed_steps(task, *args, **more)
        module = task.parallel.module if hasattr(task, "parallel") else task.models.trained.module
        bits = bits_of(module)
        return seconds

    generate = child.generate

    def hashed(*args: Any, **more: Any) -> Any:
        nonlocal bits
        answers = generate(*args, **more)
        bits = hashlib.sha256(answers.answer_BR.cpu().numpy().tobytes()).hexdigest()[:16]
        return answers

    child.timed_steps = ppo_case.timed_steps = hashing  # type: ignore[attr-defined]
    child.generate = hashed
    try:
        rows = child.measure(case, "cuda" if on_gpu else "cpu", 4, 3 if case.model == BIG else 6, 2, strict=strict)
    finally:  # the next case may be measured in this process too
        child.timed_steps, ppo_case.timed_steps, child.generate = timed_steps, timed_steps, generate  # type: ignore[attr-defined]
    if bits:
        rows["bits"] = bits
    if case.kind in ("sft", "lora", "rm"):
        tokens = case.global_batch * case.seq * (2 if case.kind == "rm" else 1)
        rows["tokens_per_s"] = tokens / rows["metrics"]["step_time_s"]
        rows["tflops_6n"] = 6e-12 * rows["params_b"] * 1e9 * rows["tokens_per_s"]
    return rows


def bits_of(module: Any) -> str:
    """The first 16 digits of the SHA-256 over all weights; empty where there are too many to copy."""
    if sum(item.numel() for item in module.parameters()) > LARGEST_HASHED_PARAMETERS:
        return ""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def attention(fields: Fields, *, strict: bool, on_gpu: bool) -> dict[str, Any]:
    """Forward and backward of one layer's attention over a packed row: seconds, and the distance from exact products.

    32 heads of 128 over 8 of keys, as Llama-3.1-8B has them; conversations of equal length.
    """
    import torch

    from charter.models.runtime import configure

    device = configure({"threads": 4, "device": "cuda" if on_gpu else "cpu"})
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    generator = torch.Generator().manual_seed(1)
    heads, kv_heads, size = (32, 8, 128) if on_gpu else (4, 2, 16)
    total, rows = int(fields["tokens"]), {}
    for count in fields["conversations"]:
        q, k, v = (
            torch.randn(total, number, size, generator=generator).to(device, torch.bfloat16).requires_grad_()
            for number in (heads, kv_heads, kv_heads)
        )
        run = attending(fields["backend"], total, count, device)
        if run is None:
            continue
        seconds = []
        for _ in range(WARMUP + REPEATS):
            start = clock(on_gpu)
            out = run(q, k, v)
            out.square().sum().backward()
            seconds.append(clock(on_gpu) - start)
            gradient, q.grad, k.grad, v.grad = q.grad, None, None, None
        exact = attending("sdpa mask", total, count, device)
        assert exact is not None
        with torch.no_grad():
            distance = (exact(*(item.float() for item in (q, k, v))) - out.float()).abs().max().item()
        digest = hashlib.sha256(gradient.float().cpu().numpy().tobytes()).hexdigest()[:16]
        ordered = sorted(seconds[WARMUP:])
        rows[str(count)] = {
            "seconds": ordered[len(ordered) // 2],
            "spread": [ordered[0], ordered[-1]],
            "largest_difference": distance,
            "bits": digest,
        }
    return {"attention": rows}


def answers_by_graphs(fields: Fields, *, strict: bool, on_gpu: bool) -> dict[str, Any]:
    """Whether answers by recorded tokens are those of tokens launched one operation at a time, bit for bit.

    `padded`: prompts of many lengths, past the first room of the cache; `leaving`: a quarter of the rows ends early.
    """
    import torch
    from measured_steps.grid import Case
    from measured_steps.subjects import language_model, stage_dtype, token_ids

    from charter.inference import fused
    from charter.inference.generate import SamplingSettings, generate
    from charter.models.runtime import configure

    device = configure({"threads": 4, "device": "cuda" if on_gpu else "cpu"})
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    most, shape = int(fields["answers"]), {name: value for name, value in fields.items() if name != "answers"}
    case = Case(kind="inference", micro_batch=8, seq=2 * most, **shape)
    model, vocabulary = language_model(case, device), case.architecture.vocab_size

    def answers(prompts: Sequence[Sequence[int]], tokens: int, *, end: int, least: int, heat: float) -> list[Any]:
        model.tokenizer.eos_token_id = end  # type: ignore[misc]
        settings = SamplingSettings(tokens, least, temperature=heat, dtype=stage_dtype(case))
        with mock.patch.object(fused, "_has_fixed_angles", return_value=False):
            plain = generate(model, prompts, seeds=range(len(prompts)), settings=settings).answer_BR
        return [plain, generate(model, prompts, seeds=range(len(prompts)), settings=settings).answer_BR]

    padded = [token_ids(length, vocabulary, length) for length in (5, 40, 17, 33, 40, 28, 9, 40)]
    several = [token_ids(24 + number % 4, vocabulary, number % 4) for number in range(16)]
    equal = {"padded": torch.equal(*answers(padded, most, end=-1, least=most, heat=1.0))}
    drawn = answers(several, 60, end=-1, least=0, heat=0.0)[0]
    last = int(drawn[0, 40])
    ending = answers(several, most, end=last, least=0, heat=0.0)
    rows = int((ending[0] == last).any(1).sum())
    return {"equal": {**equal, "leaving": torch.equal(*ending)}, "rows_that_end": rows}


def packed(fields: Fields, *, strict: bool, on_gpu: bool) -> dict[str, Any]:
    """Forward and backward of the engine's loss over packed rows, whose conversations a mask or bounds keep apart."""
    import torch
    from measured_steps.child import clock as waited
    from measured_steps.grid import Case
    from measured_steps.subjects import language_model, token_ids

    from charter.models.chat import Encoded
    from charter.models.runtime import configure
    from charter.models.token_forward import give_token_forward
    from charter.train import packing
    from charter.train.pretrain import language_loss

    device = configure({"threads": 4, "device": "cuda" if on_gpu else "cpu"})
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    rows, each, count = (int(fields[name]) for name in ("rows", "each", "conversations"))
    case = Case(kind="sft", model=fields["model"], micro_batch=rows, seq=each * count)
    model = language_model(case, device)
    give_token_forward(model.model)
    batch = packing.packed_batch(
        [
            [
                Encoded(tuple(token_ids(each, case.architecture.vocab_size, row * count + n)), (True,) * each)
                for n in range(count)
            ]
            for row in range(rows)
        ],
        padding=0,
    )
    if fields["kept_apart"] == packing.VARLEN:
        batch = batch.flattened()
        packing.take_bounds()
    seconds = []
    for _ in range(WARMUP + REPEATS):
        start = waited()
        inputs = packing.model_inputs(batch, attention=fields["kept_apart"], device=device)
        loss = language_loss(
            model.model, batch.ids_BT, batch.counted_BT, dtype="bf16", device=device, tokens=batch.tokens, more=inputs
        )
        loss.loss_sum.backward()
        model.model.zero_grad()
        seconds.append(waited() - start)
    ordered = sorted(seconds[WARMUP:])
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None
    spread = [ordered[0], ordered[-1]]
    return {"pass_s": ordered[len(ordered) // 2], "spread": spread, "tokens": batch.tokens, "peak_gib": peak}


def attending(backend: str, total: int, count: int, device: Any) -> Any:
    """A function of queries, keys and values (T, heads, size) over `count` conversations; None where it cannot run."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    each = total // count
    segments = torch.arange(total, device=device) // each

    def by_heads(function: Any, **more: Any) -> Any:
        def run(*parts: Any) -> Any:
            return function(*(item.transpose(0, 1)[None] for item in parts), enable_gqa=True, **more)[0].transpose(0, 1)

        return run

    if backend == "sdpa causal":
        return by_heads(scaled_dot_product_attention, is_causal=True) if count == 1 else None
    if backend == "sdpa mask":
        mask = (segments[:, None] == segments) & torch.ones(total, total, dtype=torch.bool, device=device).tril()
        return by_heads(scaled_dot_product_attention, attn_mask=mask)
    if device.type == "cpu":
        return None
    if backend == "varlen":
        from torch.nn.attention.varlen import varlen_attn

        bounds = torch.arange(0, total + 1, each, dtype=torch.int32, device=device)

        def joined(q: Any, k: Any, v: Any) -> Any:
            # torch 2.11 has no `enable_gqa` here: keys and values are repeated, as its sdpa does inside.
            repeated = (item.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for item in (k, v))
            return varlen_attn(q, *repeated, bounds, bounds, each, each, window_size=(-1, 0))

        return joined
    from torch.nn.attention.flex_attention import flex_attention

    from charter.train.packing import block_mask

    return by_heads(torch.compile(flex_attention), block_mask=block_mask(segments[None] + 1))


def clock(on_gpu: bool) -> float:
    """Seconds, when the device has done all it was told."""
    import torch

    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter()


def here_and_now(fields: Fields, *, on_gpu: bool) -> dict[str, Any]:
    """One case in this process, whose memory is given back after it; what went wrong where it does not end well."""
    import gc

    import torch

    try:
        return measured(fields, on_gpu=on_gpu)
    except Exception as error:  # whatever a case dies of, the others are measured
        return {"error": f"{type(error).__name__}: {error}"[-600:]}
    finally:
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()


def in_child(fields: Fields, seconds: float) -> dict[str, Any]:
    """One case in a process of its own; what went wrong where it does not end well."""
    command = [sys.executable, __file__, "--case", json.dumps(fields)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=os.environ)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {seconds:.0f} s"}
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    return json.loads(line.removeprefix("RESULT ")) if line else {"error": done.stderr.strip()[-600:]}


def machine() -> dict[str, str]:
    """The facts that figures and bits depend on here: device, driver, versions, commit."""
    import torch

    from charter.launch.machine import facts_here

    facts = facts_here()
    commit = ""
    if shutil.which("git"):
        command = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda), "transformers": facts.transformers}
    return {"device": device, **versions, **facts.cuda, "commit": commit}


def lines_of(output: Path) -> list[dict[str, Any]]:
    """The lines of the output; one cut off by the end of the machine is left out."""
    lines = []
    for line in output.read_text(encoding="utf-8").splitlines() if output.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def left(every: Sequence[Fields], lines: Sequence[Mapping[str, Any]], here: Mapping[str, str]) -> list[Fields]:
    """The cases that were not yet measured on this machine at this commit; one that failed is not tried again."""
    done = {line["name"] for line in lines if line.get("machine") == here}
    return [fields for fields in every if fields["name"] not in done]


def with_bits(result: dict[str, Any], like: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The result of a case, with whether its bits are those of the case that it must be like."""
    if not like or "bits" not in result:
        return result
    first = next((line for line in lines if line["name"] == like and line["machine"] == result["machine"]), {})
    return {**result, "same_bits": first.get("bits") == result["bits"]}


def main() -> int:
    """Measure case after case until none is left or the time is used up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", "-o", type=Path, default=Path("first_gpu.jsonl"))
    parser.add_argument("--budget-seconds", type=float, default=530.0, help="no case is begun that might end after it")
    parser.add_argument("--names", default="", help="only cases whose names begin with one of these, such as sft,ppo")
    parser.add_argument("--together", action="store_true", help="all cases in one process: more of them in the time")
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    import torch

    on_gpu = torch.cuda.is_available()
    if options.case:
        print("RESULT " + json.dumps(measured(json.loads(options.case), on_gpu=on_gpu)))
        return 0
    end, here = time.monotonic() + options.budget_seconds, machine()
    names = tuple(name for name in options.names.split(",") if name)
    every = [fields for fields in cases(on_gpu=on_gpu) if not names or fields["name"].startswith(names)]
    todo = left(every, lines_of(options.output), here)
    print(json.dumps(here), f"{len(todo)} of {len(every)} cases left", flush=True)
    for number, fields in enumerate(todo):
        if end - time.monotonic() < (LONGEST_SECONDS / 4 if options.together else LONGEST_SECONDS):
            print(f"time is up: {len(todo) - number} left; call again", flush=True)
            return 0
        start = time.monotonic()
        figures = here_and_now(fields, on_gpu=on_gpu) if options.together else in_child(fields, LONGEST_SECONDS)
        result = {"name": fields["name"], "case": dict(fields), "machine": here, **figures}
        result = with_bits(result, fields.get("like", ""), lines_of(options.output))
        result["wall_s"] = round(time.monotonic() - start, 1)
        with options.output.open("a", encoding="utf-8") as log:
            log.write(json.dumps(result) + "\n")
        shown = {name: value for name, value in result.items() if name not in ("case", "machine", "resident_gib")}
        print(json.dumps(shown), flush=True)
    print("nothing is left", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
