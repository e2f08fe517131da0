"""Constants of generation: shares of ceilings, host times and latencies, each with its spread and its source."""

from dataclasses import dataclass

from charter.physics.arrays import Array
from charter.physics.constants import constant


@dataclass(frozen=True, kw_only=True)
class ServingConstants:
    """Constants of the roofline of prefill and decode besides data sheets."""

    matmul_share: Array = constant(
        0.75,
        sigma=0.15,
        unit="share of the measured matmul ceiling",
        source="judgement: average shapes against the best shape of a search",
        most=1.0,
    )
    narrow_share: Array = constant(
        0.8,
        sigma=0.2,
        unit="share of the 4-bit rate against the 8-bit share",
        source="judgement: block scales and quantisation of activations; no 4-bit ceiling is published",
        most=1.2,
    )
    expert_share: Array = constant(
        0.5, sigma=0.3, unit="share of the dense matmul rate", source="judgement: grouped products are ragged"
    )
    attention_share: Array = constant(
        1.0,
        sigma=0.2,
        unit="factor on the attention ceiling of the device",
        source="ceilings: serving/device.py (FlashAttention papers)",
    )
    stream_share: Array = constant(
        0.82,
        sigma=0.1,
        unit="share of data-sheet bandwidth",
        source="STREAM-like tests; weights read by skinny matrix products",
        most=1.0,
    )
    cache_share: Array = constant(
        0.8,
        sigma=0.2,
        unit="share of data-sheet bandwidth",
        source="judgement: split decoding kernels (Flash-Decoding) read pages nearly as fast as streams",
        most=1.0,
    )
    tile_rows: Array = constant(
        64.0,
        sigma=0.3,
        unit="rows",
        source="WGMMA works on 64 rows (CUDA PTX ISA, wgmma.mma_async); fewer rows cost as much",
    )
    activation_values: Array = constant(
        24.0,
        sigma=0.3,
        unit="values moved per feature, token and layer",
        source="count of reads and writes of a fused layer: two norms, rotary, gated activation, residuals",
    )
    graph_layer_seconds: Array = constant(
        45e-6,
        sigma=0.4,
        unit="s",
        source="about 12 kernels of 3-4 us each between dependent kernels of a captured graph; judgement",
    )
    step_seconds: Array = constant(
        1.0e-3, sigma=0.5, unit="s", source="scheduling, sampling, graph launch of one step; judgement"
    )
    token_seconds: Array = constant(
        20e-6,
        sigma=0.5,
        unit="s per generated token",
        source="scheduler, sampler, detokenisation in Python, per sequence and step; judgement",
    )
    eager_layer_seconds: Array = constant(
        0.75e-3,
        sigma=0.3,
        unit="s",
        source="about 100 operations of 7 us issued from Python per decoder layer; judgement from profiler traces",
    )
    eager_expert_seconds: Array = constant(
        85e-6, sigma=0.4, unit="s", source="transformers loops over all experts: about 12 operations each"
    )
    quantised_linear_seconds: Array = constant(
        90e-6,
        sigma=0.4,
        unit="s",
        source="judgement: Python around a dequantising kernel (bitsandbytes, GPTQ, Triton fp8) per linear layer",
    )
    cache_passes: Array = constant(
        5.0,
        sigma=0.5,
        unit="times the repeated cache is moved",
        source="DynamicCache concatenates, repeat_kv expands, SDPA's math path copies to 32 bits (transformers)",
    )
    reduce_seconds: Array = constant(
        9e-6,
        sigma=0.3,
        unit="s",
        source="one-shot all-reduce inside an NVLink node at decode sizes; judgement from nccl-tests",
    )
    stage_stall: Array = constant(
        0.03,
        sigma=0.5,
        unit="share per further pipeline stage",
        source="judgement: prefill chunks make micro-batches of a pipeline uneven",
    )
    unmodelled: Array = constant(
        1.0, sigma=0.15, unit="factor", source="clocks, queueing, warm-up, everything else; 1 until measured"
    )
