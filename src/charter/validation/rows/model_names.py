"""Model names as tables print them (`LLAMA3_70B`, `OPT-1.3B actor + OPT-350M critic`) -> models of the catalog."""

import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from charter.catalog import models
from charter.catalog.models import CatalogModel

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
            if key in table and (_has_size(key) or not sized) and (length > 1 or len(words) == 1):
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
