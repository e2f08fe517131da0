"""Shapes for rows whose model the catalog does not know: plain decoders, and sizes alone."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

from charter.catalog import models
from charter.catalog.models import CatalogModel
from charter.physics.shapes import count_parameters
from charter.spec.architecture import Architecture
from charter.validation.rows.measurement import Measurement

Tokens = tuple[str, ...]
_PIECE = re.compile(r"\d+(?:\.\d+)?|[a-z]+")
_UNITS = {"b": 1.0, "m": 1e-3, "t": 1e3}
_ORGANISATIONS = ("meta", "facebook", "nvidia", "google", "ibm", "mosaicml", "eleutherai", "megatron", "nemo")
_RELEASES = ("hf", "instruct", "chat", "base", "it", "pt", "preview", "text", "math", "coder", "gguf", "awq", "gptq")
_USES = (
    "pretrain",
    "pretraining",
    "pretrained",
    "training",
    "inference",
    "finetune",
    "finetuning",
    "sft",
    "dpo",
    "rlhf",
)
_SIBLINGS = frozenset(("nano", "tiny", "mini", "micro", "small", "lite", "medium", "large", "xl", "xxl", "multimodal"))
"""Words behind a name without a size that make it another model's (Phi-4-mini has a quarter of Phi-4's parameters)."""
_NOISE = frozenset((*_ORGANISATIONS, *_RELEASES, *_USES, "rlhf", "fp", "bf", "the", "model", "only"))


def model_named(name: str) -> CatalogModel | None:
    """The catalog model a printed name means, or None.

    A name matches when the words and numbers of a catalog name stand in it one after another, or else in their order
    with other words between; the longest match wins, then the first. A catalog name without a size never matches a
    name with one.

    >>> [model_named(name).name for name in ("LLAMA3_70B", "llama3_70b-12layers", "OPT-1.3B actor + OPT-350M critic")]
    ['meta-llama/Meta-Llama-3-70B', 'meta-llama/Meta-Llama-3-70B', 'facebook/opt-1.3b']
    >>> model_named("Llama-2 family total") is None
    True
    """
    short, *parts = _parts(name)
    all_words = tokens(short)
    for words in (all_words, *(tokens(part) for part in parts)):
        match = _match(words, sized=_has_size(all_words))
        if match is not None:
            return match
    return _match_with_gaps(all_words)


def tokens(name: str) -> Tokens:
    """Words and numbers of a name: words run together, sizes apart, decorations dropped.

    >>> tokens("Qwen3_30B_a3B"), tokens("DeepSeek V3") == tokens("DeepSeekV3"), tokens("Pythia-1.0B")
    (('qwen', '3', '30', 'b', 'a', '3', 'b'), True, ('pythia', '1', 'b'))
    """
    words: list[str] = []
    joinable = False
    for piece in _PIECE.findall(name.casefold()):
        if piece in _NOISE:
            continue
        if not piece[0].isdigit():
            unit = bool(words) and words[-1][0].isdigit() and piece in _UNITS
            if joinable and not unit:
                words[-1] += piece
            else:
                words.append(piece)
            joinable = not unit
            continue
        words.append(f"{float(piece):g}")
        joinable = False
    return tuple(words)


def size_in_name(name: str) -> float | None:
    """Billions of parameters a name states first, None where it states none.

    >>> size_in_name("OPT-350M reward"), size_in_name("13B (FasterTransformer)"), size_in_name("Mixtral 8x7B")
    (0.35, 13.0, None)
    """
    words = tokens(re.sub(r"(?<![a-z])a\d+(?:\.\d+)?b\b", " ", name.casefold()))
    for position, (number, unit) in enumerate(pairwise(words)):
        if number[0].isdigit() and unit in _UNITS and (position == 0 or words[position - 1] not in ("x", "a")):
            return round(float(number) * _UNITS[unit], 6)
    return None


def family_of(name: str) -> str:
    """First word of a name, for guesses among relatives; may be empty.

    >>> family_of("LLaMA-65B QLoRA"), family_of("13B (FasterTransformer)")
    ('llama', '')
    """
    first = next(iter(tokens(name)), "")
    return "" if first[:1].isdigit() else first


def layers_in_name(name: str) -> int | None:
    """Layers a shortened model states (`llama3_70b-12layers`), None where it states none."""
    match = re.search(r"(\d+)[-_ ]*layers?\b", name.casefold())
    return int(match[1]) if match else None


def is_sparse_name(name: str) -> bool:
    """Return True if a name states active parameters or experts (`35B-A3B`, `8x7B`, `17B-16E`).

    >>> is_sparse_name("Qwen3.5-35B-A3B"), is_sparse_name("Mixtral 8x7B"), is_sparse_name("OPT-13B")
    (True, True, False)
    """
    return bool(re.search(r"\d+[bt][-_ ]*a\d|\d+x\d|\bmoe\b|\d+e\b|(?<![a-z])a\d+(\.\d+)?b\b", name.casefold()))


def is_hybrid_name(name: str) -> bool:
    """Return True if a name is that of a family with Mamba's mixers.

    >>> is_hybrid_name("falcon-mamba-7b"), is_hybrid_name("Zamba2-7B"), is_hybrid_name("Falcon-7B")
    (True, True, False)
    """
    return bool(re.search(r"[mzsjb]amba|falcon-?h\d|nemotron-?h\b", name.casefold()))


def is_recurrent_name(name: str) -> bool:
    """Return True if a name is that of a family without softmax attention whose layers nothing here describes.

    >>> is_recurrent_name("RWKV-6-7B"), is_recurrent_name("RecurrentGemma-9B"), is_recurrent_name("Gemma-7B")
    (True, True, False)
    """
    return bool(re.search(r"rwkv|retnet|xlstm|hyena|griffin|recurrent-?gemma", name.casefold()))


def active_in_name(name: str) -> float | None:
    """Billions of parameters that work on a token, as a name states them.

    >>> active_in_name("ERNIE-4.5-300B-A47B"), active_in_name("Mixtral 8x7B")
    (47.0, None)
    """
    match = re.search(r"(?<![a-z])a(\d+(?:\.\d+)?)b\b", name.casefold())
    return float(match[1]) if match else None


def _parts(name: str) -> tuple[str, ...]:
    """The name, without organisation, without what stands in brackets, up to a plus sign, its first word."""
    short = re.sub(r"^[\w-]+/", "", name)
    plain = re.sub(r"\([^)]*\)", " ", short)
    return (short, plain, plain.partition("+")[0], plain.partition(" ")[0])


def _match(words: Tokens, *, sized: bool) -> CatalogModel | None:
    table = _by_tokens()
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            key = words[start : start + length]
            if key not in table or not (length > 1 or len(words) == 1):
                continue
            if _has_size(key) or not (sized or _SIBLINGS.intersection(words[start + length : start + length + 1])):
                return table[key]
    return None


def _match_with_gaps(words: Tokens) -> CatalogModel | None:
    table = _by_tokens()
    keys = [key for key in table if words and key[0] == words[0] and _has_size(key) and _in_order(key, words)]
    return table[max(keys, key=len)] if keys else None


def _in_order(key: Tokens, words: Tokens) -> bool:
    rest = iter(words)
    return all(piece in rest for piece in key)


def _has_size(words: Tokens) -> bool:
    return any(a[0].isdigit() and b in _UNITS for a, b in pairwise(words))


@cache
def _by_tokens() -> Mapping[Tokens, CatalogModel]:
    table: dict[Tokens, CatalogModel] = {}
    for model in models.catalog():
        for name in (model.name, *model.aliases):
            key = tokens(name.rpartition("/")[2])
            table.setdefault(key, model)
            table.setdefault(_without_version(key), model)
    return table


def _without_version(key: Tokens) -> Tokens:
    """`mixtral 8 x 7 b v 0.1` without its release."""
    return key[:-2] if len(key) > 3 and key[-2] == "v" else key


PLAIN_EXPANSION = 4
"""MLP width over model width of the GPT family; a gated MLP is seldom that wide."""
DEFAULT_VOCABULARY = 50_304
HEAD = 128
NOMINAL_SIZE = 0.08
"""Relative difference between the size in a name and the count (`gpt-oss-120b` has 116.8 billion)."""
SAME_SIZE, RELATIVE_SIZE, SMALL_MISFIT = 0.15, 0.35, 0.03
"""How far in size a Llama, or a relative, may be that lends its widths to a row with a size alone; and how far off the
size of the result may stay."""
GATED_PRIOR, TIED_COLUMN, TIED_PRIOR, DETAIL_PRIOR = 0.03, 0.012, 0.003, 2e-4
"""Relative gain in parameters it takes to believe in another MLP than the widths suggest (gated or not, experts in
every layer or every other), in another tying than the row says, in another tying than its relatives have, in other
biases or another position table (and more than the printed digits round away)."""


def plain_architecture(row: Measurement) -> Architecture:
    """A decoder from the columns of a row that has at least `hidden` and `layers`, in the style its widths suggest."""
    hidden, layers = row.hidden or 0, row.layers or 0
    heads = row.heads or max(1, hidden // (row.head_dim or HEAD))
    ffn = row.ffn or (PLAIN_EXPANSION * hidden if not row.expert_ffn else row.expert_ffn)
    llama_like = bool(row.n_experts) or ffn != PLAIN_EXPANSION * hidden or family_of(row.model).startswith("llama")
    shape = Architecture(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=ffn,
        vocab_size=row.vocab or DEFAULT_VOCABULARY,
        tied_embeddings=not llama_like,
        gated_mlp=llama_like,
        model_type="llama" if llama_like else "gpt2",
    )
    return shape if llama_like else with_biases(shape, biases=True)


def with_biases(shape: Architecture, *, biases: bool) -> Architecture:
    """Biases on every projection and LayerNorm, or on none."""
    per_feature = 2 if biases else 1
    return replace(
        shape,
        attention_bias=biases,
        output_bias=biases,
        mlp_bias=biases,
        norm_parameters_per_feature=per_feature,
    )


def fit_to_size(shape: Architecture, row: Measurement, *, known: bool) -> Architecture:
    """The style whose parameters come closest to `params_b`: gated, tied, biases, position table, sparsity of layers.

    Every departure from the given style needs its gain (`GATED_PRIOR` and others). Of a catalog model only biases and
    position table are open, and only with a two-matrix MLP: tables print sizes of variants (MPT with learned
    positions) under the name of the family.
    """
    if not row.params_b:
        return shape
    target = row.params_b * 1e9

    def score(style: tuple[Architecture, float]) -> float:
        return _distance(style[0], target) + style[1]

    return min(_styles(shape, row, known=known), key=score)[0]


def _styles(shape: Architecture, row: Measurement, *, known: bool) -> Iterator[tuple[Architecture, float]]:
    """The given style and all others that name and columns leave open, each with the gain it needs."""
    gates = (shape.gated_mlp,) if known or shape.state_space else (True, False)
    ties = (shape.tied_embeddings,) if known else (True, False)
    tied_gain = TIED_PRIOR if row.tied_embeddings is None else TIED_COLUMN
    tables = sorted({0, shape.learned_positions, row.seq or 0})
    sparse = (False,) if known or not shape.mixture or shape.mixture.num_dense_layers else (False, True)
    for gated, tied, biases, table, interleaved in product(gates, ties, (True, False), tables, sparse):
        style = replace(shape, gated_mlp=gated, tied_embeddings=tied, learned_positions=table)
        if interleaved and style.mixture:
            every_other = replace(style.mixture, num_moe_layers=style.mlp_layers // 2)
            style = replace(style, mixture=every_other)
        changed = (biases != shape.attention_bias, table != shape.learned_positions)
        if gated and any(changed):
            continue
        if changed[0]:
            style = with_biases(style, biases=biases)
        detail = max(DETAIL_PRIOR, _rounding(row.params_b or 0.0))
        needed = ((gated != shape.gated_mlp) + interleaved) * GATED_PRIOR + (tied != shape.tied_embeddings) * tied_gain
        yield style, needed + sum(changed) * detail


def _rounding(value: float) -> float:
    """Relative half of the last printed digit: what a rounded size cannot tell apart.

    >>> _rounding(6.7), _rounding(0.1253)
    (0.0075, 0.0004)
    """
    decimals = len(f"{value:.6f}".rstrip("0").partition(".")[2])
    return round(0.5 * 10.0**-decimals / value, 4) if value else 0.0


def architecture_of_size(billions: float, name: str = "") -> Architecture:
    """A decoder of about `billions` parameters: of the name's family if the catalog has one near that size, else a
    Llama of that size, else a Llama-like shape. The depth is scaled until the size fits.

    >>> architecture_of_size(0.35, "OPT-350M").num_layers, architecture_of_size(7.0).hidden_size
    (25, 4096)
    """
    target, family = billions * 1e9, family_of(name)
    for wanted, nearest in ((family, RELATIVE_SIZE), ("llama", SAME_SIZE)):
        alike = [shape for first, shape in _dense_catalog() if wanted and first == wanted]
        relative = min(alike, key=lambda shape: _distance(shape, target), default=None)
        if relative is not None and _distance(relative, target) < nearest:
            return with_size(relative, target)
    return _scaled_llama(target)


def sparse_relative(billions: float, name: str) -> Architecture | None:
    """The mixture of experts that a name without its active size means: of its family, and nearest in size.

    A longer first word is a release of the family (`DeepSeek-V3`), and not another family (`OLMoE` beside `OLMo`).

    >>> shape = sparse_relative(671, "DeepSeek 671B")
    >>> shape.mixture.num_experts if shape and shape.mixture else None, sparse_relative(7, "OLMo-7B")
    (256, None)
    """
    family, target = family_of(name), billions * 1e9
    alike = [shape for first, shape in _family_catalog() if family and _is_release(first, family)]
    alike += [shape for first, shape in _family_catalog() if len(first) > 3 and family.startswith(first)]
    relative = min(alike, key=lambda shape: _distance(shape, target), default=None)
    close = relative is not None and relative.mixture is not None and _distance(relative, target) < NOMINAL_SIZE
    return relative if close else None


def _is_release(first: str, family: str) -> bool:
    return first.startswith(family) and first not in (f"{family}e", f"{family}moe")


def sparse_of_size(billions: float, active: float) -> Architecture:
    """The catalog's mixture of experts nearest in the share of active parameters, then in size, with its depth scaled.

    >>> sparse_of_size(1000, 32).num_layers
    61
    """

    def distance(shape: Architecture) -> float:
        count = count_parameters(shape)
        share = math.log(count.active / count.total / (active / billions))
        return 0.3 * _distance(shape, billions * 1e9) + abs(share)

    relative = min((shape for _, shape in _family_catalog() if shape.mixture), key=distance)
    count = count_parameters(relative)
    if _distance(relative, billions * 1e9) < NOMINAL_SIZE:
        return relative
    layers = (billions * 1e9 - (count.total - count.layers)) / (count.layers / relative.num_layers)
    return deepened(relative, max(2, round(layers)))


def deepened(shape: Architecture, layers: int) -> Architecture:
    """The same widths with another number of layers; layers of a kind keep their share."""

    def scaled(count: int) -> int:
        return round(count * layers / shape.num_layers)

    mixture, space = shape.mixture, shape.state_space
    if mixture and mixture.num_moe_layers is not None:
        mixture = replace(mixture, num_moe_layers=scaled(mixture.num_moe_layers))
    if space:
        space = replace(space, num_layers=scaled(space.num_layers))
    return replace(
        shape,
        num_layers=layers,
        mixture=mixture,
        state_space=space,
        sliding_window_layers=scaled(shape.sliding_window_layers),
        chunked_layers=scaled(shape.chunked_layers),
        num_attention_layers=None if shape.num_attention_layers is None else scaled(shape.num_attention_layers),
        num_mlp_layers=None if shape.num_mlp_layers is None else scaled(shape.num_mlp_layers),
    )


@cache
def _family_catalog() -> tuple[tuple[str, Architecture], ...]:
    """Decoders of the catalog without an encoder by the first word of their name, experts included."""
    return tuple(
        (family_of(model.name.rpartition("/")[2]), model.architecture)
        for model in models.catalog()
        if not model.architecture.encoder
    )


@cache
def _dense_catalog() -> tuple[tuple[str, Architecture], ...]:
    """Dense decoders of the catalog by the first word of their name."""
    return tuple(
        (family_of(model.name.rpartition("/")[2]), model.architecture)
        for model in models.catalog()
        if not (model.architecture.mixture or model.architecture.state_space or model.architecture.encoder)
    )


def _distance(shape: Architecture, target: float) -> float:
    return abs(math.log(count_parameters(shape).total / target))


def with_size(shape: Architecture, target: float) -> Architecture:
    """The same widths with as many layers as come closest to a number of parameters; within 3 % nothing changes."""
    if _distance(shape, target) < SMALL_MISFIT:
        return shape
    count = count_parameters(shape)
    per_layer = count.layers / shape.num_layers
    layers = max(1, round((target - (count.total - count.layers)) / per_layer))
    windowed = round(shape.sliding_window_layers * layers / shape.num_layers)
    return replace(shape, num_layers=layers, sliding_window_layers=windowed)


def _scaled_llama(target: float) -> Architecture:
    """A Llama-like shape of a size: width about 100 times the depth, scaled until the count fits."""
    best: Architecture | None = None
    for hidden in range(256, 32_768 + 1, 128):
        head = HEAD if hidden >= 1024 else 64
        ffn = -(-8 * hidden // 3 // 256) * 256
        shape = Architecture(
            hidden_size=hidden,
            num_layers=max(2, round(hidden / 110)),
            num_heads=hidden // head,
            head_dim=head,
            intermediate_size=ffn,
            vocab_size=32_000,
        )
        per_layer = count_parameters(shape).layers / shape.num_layers
        left = target - 2 * shape.vocab_size * hidden
        shape = replace(shape, num_layers=max(1, round(left / per_layer)))
        if best is None or _misfit(shape, target) < _misfit(best, target):
            best = shape
    assert best is not None
    return best


def _misfit(shape: Architecture, target: float) -> float:
    """Distance from the size, and from the depth that goes with the width."""
    return _distance(shape, target) + abs(math.log(shape.num_layers * 110 / shape.hidden_size))
