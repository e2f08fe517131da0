"""Figures of the native engine on processors, measured once.

On a CPU a model of a few million parameters is bound by the framework: every operation costs a fixed time, and
elementwise passes over activations and logits cost memory bandwidth. Measured with torch 2.13 and transformers 5 on
one core of an AMD EPYC (AVX-512) virtual machine in CPU time, best of five: forward pass, training step and decode
step of Llama-style models of 0.2 to 14 million parameters, batches of 1 x 8 to 32 x 128 tokens
(docs/guides/plan.md, "Where the local constants come from"). The probe of the same core: 99 GFLOP/s fp32, 38 GB/s.
Decode steps and the text work of answers are from whole stages in `benchmarks/planner_vs_engine.py`, shapes of
`planned_against/fit.py`. Those ran while other programs kept all cores busy, which makes an operation cost 1.6 and a
byte 1.8 times as much; the figures here stay those of a quiet machine, a pace (`validate calibrate -C`) has the rest.
"""

OPERATION_SECONDS = 6e-6
"""Fixed cost of one torch operation, Python and dispatch included."""
OPERATIONS_PER_LAYER = 55.0
"""Such operations of a Hugging Face decoder layer in a forward pass: 0.3 ms per layer measured."""
OPERATIONS_PER_MODEL = 20.0
"""The same outside the layers: embedding, masks, final norm, head."""
DECODE_OPERATIONS = 2.0
"""Operations of a decode step over those of a forward pass: masks, cache, drawing a token."""
ANSWER_SECONDS = 1e-3
"""Text work per answer that is rewarded: decode, chat template, tokens of prompt and answer."""
BACKWARD_OPERATIONS = 4.0
"""Operations of backward pass, clipping and update over those of the forward pass: training step / forward was 5."""
AUTOCAST_OPERATIONS = 1.5
"""Operations under bf16 autocast over those in fp32: casts of weights and inputs."""
MATMUL_SHARE = 0.95
"""Share of the probed matrix-product rate that the products of a model reach."""
BF16_SPEEDUP = 3.0
"""Matrix products in bf16 over fp32 where the processor has instructions for them (AVX512-BF16, AMX)."""
BF16_WITHOUT_INSTRUCTIONS = 0.5
"""The same where it has none: every product is converted. Judgement."""
FURTHER_THREAD_GAIN = 0.3
"""What each thread after the first adds, as a share of the first: small operations stay on one thread.

Judgement within what was measured on a two-core virtual machine (benchmarks/thread_gain.py: training step of 1.28 M
parameters on 8 x 128 tokens): 0.14 to 0.46 at three earlier times, 0.58 in fp32 and bf16 on a quiet machine.
"""
ACTIVATION_PASSES = 8.0
"""Times that every kept activation is read or written in a forward pass."""
BACKWARD_PASSES = 1.5
"""The same in a backward pass, over those of the forward pass."""
LOGIT_BYTES_TRAINING = 200.0
"""Bytes moved per logit in a training step: fp32 copy, log-softmax, exponentials, their gradients."""
LOGIT_BYTES_SAMPLING = 290.0
"""Bytes moved per logit when a token is drawn: softmax, fp64 copy, cumulative sum, search."""
CACHE_PASSES = 3.0
"""Times that keys and values cross memory per decode step: the cache is copied to append a token, then read."""
OPTIMIZER_BYTES_PER_PARAMETER = 60.0
"""fused AdamW and clipping: weight, gradient and two moments read and written, gradient scaled."""
GRADIENT_BYTES_PER_SECOND = 1e9
"""Bytes that two processes of one machine sum per second: gloo over loopback, 1 to 64 MB, 0.9 to 1.7 GB/s measured."""
SOURCE = "measured on one core of an AMD EPYC, torch 2.13, 2026-11 (plan/hardware/cpu_constants.py)"
