"""`charter plan mem`: every term of a model's memory on an accelerator, and what would make it fit."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from charter.cli.common import JsonOption, console, plain_table, print_json
from charter.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from charter.catalog.accelerators import Accelerator
    from charter.catalog.models import CatalogModel
    from charter.physics.memory import Alternative
    from charter.physics.precision import TrainingPrecision
    from charter.physics.terms import MemoryBreakdown
    from charter.spec.architecture import Architecture
    from charter.spec.layout import Layout


def memory_json(
    model: "CatalogModel",
    device: "Accelerator",
    count: int,
    mode: str,
    layout: "Layout",
    memory: "MemoryBreakdown",
    enough: float,
    usable: float,
    changes: "tuple[Alternative, ...]",
) -> dict[str, Any]:
    """Everything as plain JSON values; bytes per accelerator."""
    from charter.physics.shapes import count_parameters

    parameters = count_parameters(model.architecture)
    return {
        "model": model.name,
        "parameters": parameters.total,
        "active_parameters": parameters.active,
        "model_source": model.provenance.source,
        "model_confidence": model.provenance.confidence,
        "model_assumption": model.assumption,
        "accelerator": device.name,
        "count": count,
        "mode": mode,
        "layout": layout.label,
        "pipeline_stage": memory.stage,
        "phase": memory.phase,
        "phases": memory.phase_bytes,
        "terms": [
            {"name": t.name, "part": t.part, "bytes": t.value, "formula": t.formula, "source": t.source}
            for t in memory.terms
        ],
        "breakdown": memory.by_part(),
        "peak_bytes": memory.total_bytes,
        "enough_bytes": enough,
        "interval": asdict(memory.interval),
        "largest_term": memory.largest_term.name,
        "capacity_bytes": device.memory_bytes,
        "capacity_source": device.memory_provenance.source,
        "usable_bytes": usable,
        "fits": memory.fits(usable),
        "surely_fits": memory.surely_fits(device.memory_bytes),
        "would_fit": [
            {
                "change": item.change,
                "count": item.count,
                "peak_bytes": item.total_bytes,
                "options": _options(item, layout, device),
            }
            for item in changes
        ],
    }


def _options(item: "Alternative", layout: "Layout", device: "Accelerator") -> str:
    """Return what to type for a layout that would fit, beside what was typed."""
    new = item.layout
    options = [] if item.weights is None else [f"--weights {item.weights}"]
    for name in ("micro_batch", "accumulation", "zero", "recompute", "tensor"):
        if (value := getattr(new, name)) != getattr(layout, name):
            options.append(f"--{name.replace('_', '-')} {int(value) if name != 'recompute' else value.value}")
    if new.offload_optimizer != layout.offload_optimizer:
        options.append("--offload-optimizer")
    if new.offload_activations != layout.offload_activations:
        options.append("--offload-activations")
    if item.count != layout.num_accelerators:
        options.append(f"--on {device.name}:{item.count}")
    return " ".join(options)


def print_memory(
    model: "CatalogModel", device: "Accelerator", report: dict[str, Any], memory: "MemoryBreakdown"
) -> None:
    """The same for people, as a table."""
    from charter.report.plan_cells import enough_line
    from charter.units import format_bytes, format_count

    out = console()
    stage = "" if memory.stage == "only" else f", {memory.stage} pipeline stage (the fullest)"
    parameters = format_count(report["parameters"])
    origin = f"{model.provenance.source}; {model.provenance.confidence}"
    out.print(f"{model.name}, {parameters} parameters ({origin})")
    if model.assumption:
        out.print(f"Assumed: {model.assumption}.", style="yellow")
    out.print(f"{report['mode']} on {report['count']} x {device.name}, {report['layout']}{stage}", style="bold")
    table = plain_table(("per accelerator", "left"), ("GiB", "right"), ("", "right"), ("formula", "wrap"))
    sources: dict[str, int] = {}
    for term in memory.terms:
        number = sources.setdefault(term.source, len(sources) + 1)
        share = f"{term.value / memory.total_bytes:.0%}"
        table.add_row(term.name, f"{term.value / 2**30:.2f}", share, f"{term.formula} [{number}]")
    table.add_section()
    usable = report["usable_bytes"]
    free = usable - memory.total_bytes
    verdict = f"fits, {format_bytes(free)} free" if free >= 0 else f"does not fit, {format_bytes(-free)} too much"
    capacity = f"of {usable / 2**30:.2f} usable ({device.memory_bytes / 2**30:.2f} on the device): {verdict}"
    table.add_row("total", f"{memory.total_bytes / 2**30:.2f}", "", capacity, style="bold")
    out.print(table)
    if planned := enough_line(memory.total_bytes, report["enough_bytes"]):
        out.print(planned)
    phases = ", ".join(f"{phase} {size / 2**30:.2f}" for phase, size in memory.phase_bytes.items())
    out.print(f"fullest in {memory.phase}; GiB by phase: {phases}")
    spread = memory.interval
    out.print(f"p10 {spread.p10 / 2**30:.2f}, p50 {spread.p50 / 2**30:.2f}, p90 {spread.p90 / 2**30:.2f} GiB")
    out.print("\n".join(f"[{number}] {source}" for source, number in sources.items()), style="dim")
    out.print(f"capacity: {device.memory_provenance.source}", style="dim")
    if free < 0:
        largest = memory.largest_term
        out.print(f"The largest term is {largest.name} ({format_bytes(largest.value)}).")
        lines = [
            f"  {item['change']}: {format_bytes(item['peak_bytes'])} ({item['options']})"
            for item in report["would_fit"]
        ]
        out.print("Would fit:\n" + "\n".join(lines) if lines else "Nothing that was tried fits.")


def print_printed(rows: list[dict[str, Any]]) -> None:
    """Print formulas as their sources print them, beside ours; GB, as they print it."""
    table = plain_table(("as printed", "left"), ("GB", "right"), ("ours", "right"), ("formula", "wrap"))
    for row in rows:
        text = f"{row['formula']}: {row['note']} ({row['source']})"
        table.add_row(row["name"], f"{row['printed_bytes'] / 1e9:,.2f}", f"{row['our_bytes'] / 1e9:,.2f}", text)
    console().print(table)


Mode = Literal["train", "lora", "qlora", "infer"]
Weights = Literal["fp32", "bf16", "fp8", "int8", "int4"]
PrecisionName = Literal["fsdp", "zero", "megatron", "fp32", "bf16"]
OptimizerName = Literal["adam", "adam8bit", "adafactor", "sgd"]
StackName = Literal[
    "native", "fsdp", "deepspeed", "megatron", "megatron-deepspeed", "huggingface", "unsloth", "torchtune",
    "torchtitan", "maxtext", "nanotron", "internevo", "litgpt", "composer",
]  # fmt: skip


def mem(
    model: Annotated[str, typer.Argument(help="Catalog name, 8B, path of a config.json, or its directory.")],
    accelerator: Annotated[
        str,
        typer.Option(
            "--accelerator", "-a", "--on", "--gpus", help="Type and number, H100-80GB:8; cpu for this machine."
        ),
    ],
    mode: Annotated[
        Mode | None, typer.Option("--mode", help="What the job does; train, or lora where --rank is given.")
    ] = None,
    zero: Annotated[int, typer.Option("--zero", min=0, max=3, help="ZeRO stage (3 = FSDP).")] = 3,
    tensor: Annotated[int, typer.Option("--tensor", min=1, help="Tensor-parallel degree.")] = 1,
    pipeline: Annotated[int, typer.Option("--pipeline", min=1, help="Pipeline stages.")] = 1,
    context: Annotated[int, typer.Option("--context", min=1, help="Context-parallel degree.")] = 1,
    expert: Annotated[int, typer.Option("--expert", min=1, help="Expert-parallel degree.")] = 1,
    micro_batch: Annotated[int, typer.Option("--micro-batch", min=1, help="Sequences per rank and pass.")] = 1,
    accumulation: Annotated[int, typer.Option("--accumulation", min=1, help="Micro-batches per step.")] = 1,
    seq_len: Annotated[int, typer.Option("--seq-len", min=1, help="Tokens per sequence.")] = 4096,
    recompute: Annotated[
        Literal["none", "selective", "full"], typer.Option("--recompute", help="Activation recomputation.")
    ] = "none",
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", help="With --tensor.")] = False,
    offload_optimizer: Annotated[bool, typer.Option("--offload-optimizer", help="Into host memory.")] = False,
    offload_activations: Annotated[
        bool, typer.Option("--offload-activations", help="Inputs of layers into host memory, with --recompute full.")
    ] = False,
    precision: Annotated[
        PrecisionName,
        typer.Option("--precision", help="Bytes per parameter: fsdp 4+4+8, zero 2+2+12, megatron 2+4+12, ..."),
    ] = "fsdp",
    optimizer: Annotated[
        OptimizerName,
        typer.Option("--optimizer", help="Of what is trained: adam; adam8bit (bitsandbytes); sgd with momentum."),
    ] = "adam",
    stack: Annotated[
        StackName, typer.Option("--stack", help="Whose code trains: what its layers, loss and optimizer step keep.")
    ] = "native",
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank", "--lora", min=1, help="Adapter rank (lora, qlora); 16 unless given.", show_default=False
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences held at once (infer).")] = 1,
    prefill_tokens: Annotated[
        int | None,
        typer.Option("--prefill-tokens", min=1, help="Tokens of one pass over prompts (infer); 8,192, or one prompt."),
    ] = None,
    weights: Annotated[
        Weights | None, typer.Option("--weights", help="Stored weights (infer); as they were released unless given.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Formulas as papers print them, beside ours.")] = False,
    json_: JsonOption = False,
) -> None:
    """Memory of a model on an accelerator, term by term; exit code 3 when it does not fit."""
    from charter.catalog import models
    from charter.plan.knowledge import shipped
    from charter.spec.layout import Layout, Recompute, ZeroStage

    mode = mode or ("train" if rank is None else "lora")
    _check_mode(mode, rank, explain=explain, offloaded=recompute if offload_activations else "")
    catalog_model = models.resolve(models.of_size(model))
    device, count = _device(accelerator)
    usable = shipped().usable_bytes(device)
    _check_degrees(catalog_model, count, tensor=tensor, pipeline=pipeline, context=context, expert=expert)
    layout = Layout(
        data=count // (tensor * pipeline * context),
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        zero=ZeroStage(0 if mode == "infer" else zero),
        micro_batch=micro_batch,
        accumulation=accumulation,
        sequence_parallel=sequence_parallel,
        recompute=Recompute(recompute),
        offload_optimizer=offload_optimizer,
        offload_activations=offload_activations,
    )
    shape, kind = catalog_model.architecture, _precision(precision, optimizer)
    if mode == "infer":
        memory, changes = _answering(
            shape,
            device,
            layout,
            usable,
            batch=batch,
            seq_len=seq_len,
            weights=weights or catalog_model.stored,
            prefill_tokens=prefill_tokens,
        )
    else:
        judge = _training(shape, device, seq_len=seq_len, precision=kind, stack=stack, mode=mode, rank=rank or 16)
        memory = judge(layout)
        changes = () if memory.fits(usable) else _changes(layout, judge, usable, stack)
    enough = shipped().enough_bytes(memory.interval, _group(mode), device)
    report = memory_json(catalog_model, device, count, mode, layout, memory, enough, usable, changes)
    if explain:
        from charter.physics.source_formulas import printed_formulas

        rows = printed_formulas(shape, layout, memory, seq_len=seq_len, precision=kind)
        report["printed"] = [asdict(row) for row in rows]
    if json_:
        print_json(report)
    else:
        print_memory(catalog_model, device, report, memory)
        if explain:
            print_printed(report["printed"])
    if not report["fits"]:
        raise typer.Exit(ExitCode.INFEASIBLE)


def _group(mode: str) -> str:
    """Return the group of measurements whose errors the memory of a mode shares."""
    return {"train": "training memory", "infer": "inference memory"}.get(mode, "adapter memory")


def _check_mode(mode: Mode, rank: int | None, *, explain: bool, offloaded: str) -> None:
    if rank is not None and mode not in ("lora", "qlora"):
        raise UsageError(f"--rank {rank}: is of adapters, with --mode lora or qlora; found --mode {mode}")
    if explain and mode != "train":
        raise UsageError(f"--explain: papers print formulas for training a whole model; found --mode {mode}")
    if offloaded and (mode == "infer" or offloaded != "full"):
        raise UsageError(
            "--offload-activations: moves what recomputed layers keep, with --recompute full while training; "
            f"found --mode {mode} --recompute {offloaded}"
        )


def _changes(
    layout: "Layout", judge: "Callable[[Layout], MemoryBreakdown]", usable: float, stack: str
) -> "tuple[Alternative, ...]":
    """Return what would make a training layout fit, of what the engine of its stack can do."""
    from charter.engines.native.capabilities import CAPABILITIES
    from charter.physics.memory import training_alternatives

    on_host = stack == CAPABILITIES.memory and CAPABILITIES.offload_activations
    return training_alternatives(layout, judge, usable, offloads_activations=on_host)


def _device(text: str) -> "tuple[Accelerator, int]":
    from charter.catalog.accelerators import CPU, get, parse_request, usual_request

    name, count = parse_request(usual_request(text))
    if name != CPU:
        return get(name), count
    from charter.plan.machine import probe_machine

    return probe_machine().processor(), 1


def _check_degrees(model: "CatalogModel", count: int, *, tensor: int, pipeline: int, context: int, expert: int) -> None:
    shape = model.architecture
    degrees = tensor * pipeline * context
    if count % degrees:
        raise UsageError(
            f"{count} accelerators cannot be split into tensor {tensor} x pipeline {pipeline} x context {context} "
            f"= {degrees}; ask for a multiple of {degrees}, like --accelerator TYPE:{degrees}"
        )
    if pipeline > shape.num_layers:
        raise UsageError(f"{pipeline} pipeline stages for {shape.num_layers} layers; at most {shape.num_layers}")
    if shape.num_heads % tensor:
        raise UsageError(f"tensor {tensor} does not divide the {shape.num_heads} attention heads of {model.name}")
    if expert > 1 and (shape.mixture is None or shape.mixture.num_experts % expert or count // degrees % expert):
        experts = shape.mixture.num_experts if shape.mixture else 0
        raise UsageError(
            f"expert {expert} must divide both the experts of {model.name} ({experts}) "
            f"and its data-parallel degree ({count // degrees})"
        )


def _precision(name: str, optimizer: str) -> "TrainingPrecision":
    from charter.physics import precision as kinds

    chosen = {
        "fsdp": kinds.FSDP_MIXED,
        "zero": kinds.ZERO_PAPER,
        "megatron": kinds.MEGATRON,
        "fp32": kinds.FP32,
        "bf16": kinds.PURE_BF16,
    }[name]
    return kinds.with_optimizer(chosen, optimizer)


def _training(
    shape: "Architecture",
    device: "Accelerator",
    *,
    seq_len: int,
    precision: "TrainingPrecision",
    stack: str,
    mode: str,
    rank: int,
) -> "Callable[[Layout], MemoryBreakdown]":
    """Memory of a training layout with everything but the layout fixed; constants and interval as calibrated."""
    from charter.physics.memory import training_memory
    from charter.physics.memory_profiles import PROFILES
    from charter.plan.knowledge import memory_of_stack
    from charter.spec.layout import Adapter

    adapter = None if mode == "train" else Adapter(rank=rank, base_bits=4 if mode == "qlora" else 16)
    if adapter is not None and (refusal := adapter.too_large(shape.hidden_size)):
        raise UsageError(f"--lora {rank}: {refusal}")
    fitted = memory_of_stack(stack, _group(mode))

    def judge(layout: "Layout") -> "MemoryBreakdown":
        memory = training_memory(
            shape,
            layout,
            seq_len=seq_len,
            precision=precision,
            adapter=adapter,
            accelerator=device,
            profile=PROFILES[stack],
            constants=fitted.training,
        )
        return replace(memory, sigma=fitted.sigma)

    return judge


def _answering(
    shape: "Architecture",
    device: "Accelerator",
    layout: "Layout",
    usable: float,
    *,
    batch: int,
    seq_len: int,
    weights: str,
    prefill_tokens: int | None,
) -> "tuple[MemoryBreakdown, tuple[Alternative, ...]]":
    """Memory of a model that answers; where it does not fit, what would."""
    from charter.physics.memory import inference_alternatives

    def judge(layout: "Layout", weights: str) -> "MemoryBreakdown":
        return _inference(
            shape, device, layout, batch=batch, seq_len=seq_len, weights=weights, prefill_tokens=prefill_tokens
        )

    memory = judge(layout, weights)
    changes = () if memory.fits(usable) else inference_alternatives(judge, layout, weights, usable)
    return memory, changes


def _inference(
    shape: "Architecture",
    device: "Accelerator",
    layout: "Layout",
    *,
    batch: int,
    seq_len: int,
    weights: str,
    prefill_tokens: int | None,
) -> "MemoryBreakdown":

    from charter.physics.inference_memory import PASS_TOKENS, inference_memory
    from charter.plan.knowledge import INFERENCE_MEMORY, NATIVE_STACKS, memory_of_stack

    fitted = memory_of_stack(NATIVE_STACKS[INFERENCE_MEMORY], _group("infer"))
    memory = inference_memory(
        shape,
        batch=batch,
        tokens_per_sequence=seq_len,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        weights=weights,
        prefill_tokens=prefill_tokens or min(batch * seq_len, max(seq_len, PASS_TOKENS)),
        accelerator=device,
        constants=fitted.inference,
    )
    return replace(memory, sigma=fitted.sigma)
