"""Formulas exactly as the source texts print them, beside what Charter computes: `charter plan mem --explain`.

Where a printed formula or unit is loose, the note says so; no plan is made with them.
"""

from dataclasses import dataclass

from charter.physics.precision import TrainingPrecision
from charter.physics.shapes import count_parameters
from charter.physics.terms import MemoryBreakdown
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute, ZeroStage

ARTICLE = "article on Llama 65B on 1,024 A100"
KORTHIKANTI = "Korthikanti et al. 2022 (arXiv:2205.05198)"
ALL_STATE = "end of backward"
"""The phase that holds all model states: the peak of ZeRO 2 and 3 lies before all gradients exist."""


@dataclass(frozen=True, kw_only=True)
class PrintedFormula:
    """One printed formula with its value and ours, in bytes on one accelerator unless the name says otherwise."""

    name: str
    formula: str
    source: str
    printed_bytes: float
    our_bytes: float
    note: str


def printed_formulas(
    architecture: Architecture,
    layout: Layout,
    memory: MemoryBreakdown,
    *,
    seq_len: int,
    precision: TrainingPrecision,
) -> tuple[PrintedFormula, ...]:
    """Return the printed formulas that speak of training a whole model with this layout, beside `memory`."""
    count = count_parameters(architecture).total
    state = sum(t.value for t in memory.phases[ALL_STATE] if t.part in {"parameters", "gradients", "optimizer"})
    activation_bytes = memory.part("activations")
    size = {"layers": architecture.num_layers, "hidden_size": architecture.hidden_size}
    tokens = layout.micro_batch * seq_len * layout.data
    rows = [
        PrintedFormula(
            name="model states, the whole model",
            formula="2P + 2P + 8P",
            source=ARTICLE,
            printed_bytes=sum(article_adam_state_bytes(count).values()),
            our_bytes=precision.state_bytes * count,
            note="printed without the fp32 master copy of mixed precision",
        ),
        PrintedFormula(
            name="activations",
            formula="L s b h 34 / N",
            source=ARTICLE,
            printed_bytes=article_activation_bytes(
                **size, tokens_in_flight=tokens, accelerators=layout.num_accelerators
            ),
            our_bytes=activation_bytes,
            note="34 is the constant of a GPT layer with dropout; divided by all accelerators, printed in GB as GiB",
        ),
        PrintedFormula(
            name="activations of the first stage",
            formula=f"L (1 + (p - 1)/(p v)) {_korthikanti_layer(layout)}",
            source=f"{KORTHIKANTI}, equations 1 to 6, table 2",
            printed_bytes=korthikanti_layer_bytes(
                seq_len=seq_len,
                micro_batch=layout.micro_batch,
                hidden_size=architecture.hidden_size,
                heads=architecture.num_heads,
                tensor=layout.tensor,
                sequence_parallel=layout.sequence_parallel,
                recompute=layout.recompute,
            )
            * architecture.num_layers
            * korthikanti_first_stage_factor(pipeline=layout.pipeline, interleave=layout.interleave),
            our_bytes=activation_bytes,
            note="a GPT layer in fp16 with dropout and unfused attention, and micro-batches that fill the pipeline",
        ),
    ]
    if layout.zero == ZeroStage.GRADIENTS:
        degrees = {"tensor": layout.tensor, "data": layout.data}
        rows.insert(
            1,
            PrintedFormula(
                name="model states, ZeRO-2",
                formula="2P/TP + 14P/DP",
                source=ARTICLE,
                printed_bytes=article_model_state_bytes(count, **degrees),
                our_bytes=state,
                note=f"the second term forgets TP; corrected {zero2_state_bytes(count, **degrees) / 1e9:,.2f} GB",
            ),
        )
    return tuple(rows)


def _korthikanti_layer(layout: Layout) -> str:
    """Return the printed formula of one layer: a row of table 2."""
    if layout.recompute is Recompute.FULL:
        return "2 s b h"
    keeps_scores = layout.recompute is Recompute.NONE
    if layout.sequence_parallel:
        return f"s b h/t (34{' + 5 a s/h' if keeps_scores else ''})"
    return f"s b h (10 + 24/t{' + 5 a s/(h t)' if keeps_scores else ''})"


def article_activation_bytes(
    *, layers: float, hidden_size: float, tokens_in_flight: float, accelerators: float, constant: float = 34.0
) -> float:
    """Return the activations per accelerator as printed: `L * s * b * h * 34 / N`.

    The text prints 87.04 "GiB" for Llama 65B, 4M tokens, 1,024 A100; the value is 87.04 GB (81.06 GiB). 34 is the
    constant of a GPT layer with dropout (Korthikanti et al. 2022, equation 1), not of a Llama layer.

    >>> article_activation_bytes(layers=80, hidden_size=8192, tokens_in_flight=4e6, accelerators=1024) / 1e9
    87.04
    """
    return layers * tokens_in_flight * hidden_size * constant / accelerators


def article_model_state_bytes(num_parameters: float, *, tensor: int, data: int) -> float:
    """Return the model states per accelerator as printed for ZeRO-2 with tensor parallelism: `2P/TP + 14P/DP`.

    The second term forgets that tensor parallelism divides the sharded part too; see `zero2_state_bytes`.

    >>> round(article_model_state_bytes(65e9, tensor=8, data=128) / 1e9, 2)
    23.36
    """
    return 2 * num_parameters / tensor + 14 * num_parameters / data


def zero2_state_bytes(num_parameters: float, *, tensor: int, data: int) -> float:
    """Return the same, corrected: `2P/TP + 14P/(TP * DP)`.

    >>> round(zero2_state_bytes(65e9, tensor=8, data=128) / 1e9, 2)
    17.14
    """
    return 2 * num_parameters / tensor + 14 * num_parameters / (tensor * data)


def article_adam_state_bytes(num_parameters: float) -> dict[str, float]:
    """Return the model states as printed: bf16 weights and gradients, two fp32 moments, no fp32 master copy.

    >>> {name: size / 1e9 for name, size in article_adam_state_bytes(70e9).items()}
    {'parameters': 140.0, 'gradients': 140.0, 'adam': 560.0}
    """
    return {"parameters": 2.0 * num_parameters, "gradients": 2.0 * num_parameters, "adam": 8.0 * num_parameters}


def korthikanti_layer_bytes(
    *,
    seq_len: float,
    micro_batch: float,
    hidden_size: float,
    heads: float,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = Recompute.NONE,
) -> float:
    """Return the activation bytes of one GPT layer with dropout, fp16.

    None: `s b h (10 + 24/t + 5 a s / (h t))`, with sequence parallelism `s b h / t (34 + 5 a s / h)`; selective drops
    the `5 a s / h`; full keeps `2 s b h`. Source: Korthikanti et al. 2022, equations 1, 2, 4, 6 and table 2.

    >>> korthikanti_layer_bytes(seq_len=2048, micro_batch=4, hidden_size=6144, heads=64, tensor=8) * 48 / 2**30
    59.25
    """
    base = seq_len * micro_batch * hidden_size
    if recompute == Recompute.FULL:
        return 2 * base
    scores = 0.0 if recompute == Recompute.SELECTIVE else 5 * heads * seq_len / hidden_size
    if sequence_parallel:
        return base / tensor * (34 + scores)
    return base * (10 + 24 / tensor + scores / tensor)


def korthikanti_first_stage_factor(*, pipeline: int, interleave: int) -> float:
    """Return the layers' worth of activations on the first stage over all layers: 1 for 1F1B, else `1 + (p - 1)/(p v)`.

    p stages hold L/p layers each and the first one p micro-batches, so all L count once.
    """
    return 1.0 if interleave == 1 else 1 + (pipeline - 1) / (pipeline * interleave)
