"""The number formats of Megatron-LM: 16 bits, and products of the layers in 8 bits by TransformerEngine.

Sources at the recorded commit: megatron/core/transformer/transformer_config.py (fp8, fp8_recipe and their checks),
megatron/core/fp8_utils.py get_fp8_recipe (which recipe needs which TransformerEngine), megatron/training/arguments.py
validate_args; TransformerEngine 2.20 transformer_engine/pytorch/utils.py assert_dim_for_fp8_exec (sides of a product).
"""

from collections.abc import Iterator

from charter.engines.common.arguments import Arguments
from charter.spec.architecture import Architecture
from charter.spec.stage import FP8

FORMAT, RECIPE = "hybrid", "tensorwise"
"""E4M3 forward and E5M2 for gradients; every tensor is scaled by its largest value of the moment, so that nothing has
to be known of it before: converted weights bring no history of such values, and a resumed run needs none."""
TRANSFORMER_ENGINE = "2.2"
"""The first release with that recipe."""
SIDE = 16
"""Numbers on a side of a product; TransformerEngine refuses others."""
NOTE = (
    "weights, gradients and all but the layers' products in bf16, fp32 copies in the optimizer; E4M3 forward, E5M2 for "
    "gradients, each tensor scaled by its largest value of the moment"
)


def precision_arguments(given: Arguments, model: Architecture, *, dtype: str, seq_len: int) -> None:
    """The options of the stage's `dtype`."""
    fields = given.fields
    if dtype == "fp32":
        fields.same("stage.dtype", "fp32", "neither --bf16 nor --fp16")
    elif dtype != FP8:
        given.give(f"--{dtype}")
        fields.to("stage.dtype", f"--{dtype}", note="parameters in it, fp32 copies in the optimizer")
    else:
        for reason in _odd_sides(given, model, seq_len):
            fields.refuse("stage.dtype", reason, "dtype: bf16, or another layout")
        given.give("--bf16")
        given.give("--fp8-format", FORMAT)
        given.give("--fp8-recipe", RECIPE)
        fields.to("stage.dtype", "--bf16", "--fp8-format", "--fp8-recipe", how="computed", note=NOTE)


def _odd_sides(given: Arguments, model: Architecture, seq_len: int) -> Iterator[str]:
    """Sides of products that are no multiple of 16 once tensors and sequences are divided."""
    layout = given.handover.layout
    tokens = layout.micro_batch * seq_len // (layout.context * (layout.tensor if layout.sequence_parallel else 1))
    sides = {
        "tokens of a micro-batch on an accelerator": tokens,
        "hidden_size": model.hidden_size,
        "heads x head_size / tensor": model.num_heads * model.head_size // layout.tensor,
        "queries, keys and values / tensor": (model.num_heads + 2 * model.kv_heads) * model.head_size // layout.tensor,
        "intermediate_size / tensor": model.intermediate_size // layout.tensor,
    }
    if model.mixture is not None:
        sides["expert_intermediate_size"] = model.mixture.expert_intermediate_size
        sides["width of the shared experts / tensor"] = model.mixture.shared_width // layout.tensor
    odd = ", ".join(f"{name} ({size})" for name, size in sides.items() if size % SIDE)
    if odd:
        yield f"products in 8 bits have sides of multiples of {SIDE}; {odd} is none"
