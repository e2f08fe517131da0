"""Known models: their architecture, where it is written, and the published number of parameters."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from charter.catalog.accelerators import closest
from charter.catalog.rows import DATA, Provenance
from charter.errors import CatalogError, UsageError
from charter.spec.architecture import (
    Architecture,
    Encoder,
    LatentAttention,
    MixtureOfExperts,
    SparseIndexer,
    StateSpace,
)

__all__ = ["CatalogModel", "catalog", "get", "resolve"]


@dataclass(frozen=True, kw_only=True)
class CatalogModel:
    """A model by name, with the source of its architecture."""

    name: str
    architecture: Architecture
    published_parameters: int | None
    """What the reference implementation counts; a check, never an input."""
    aliases: tuple[str, ...]
    note: str
    provenance: Provenance
    stored: str = "bf16"
    """Format of the released weights, which servers compute with as it is; by the names of `physics.precision`."""
    assumption: str = ""
    """Assumptions behind reading a `config.json`, and parts of it that are not in the architecture."""


SIZES = {
    "0.5B": "Qwen/Qwen2.5-0.5B",
    "1B": "meta-llama/Llama-3.2-1B",
    "1.5B": "Qwen/Qwen2.5-1.5B",
    "3B": "meta-llama/Llama-3.2-3B",
    "7B": "Qwen/Qwen2.5-7B",
    "8B": "meta-llama/Llama-3.1-8B",
    "13B": "meta-llama/Llama-2-13b-hf",
    "14B": "Qwen/Qwen2.5-14B",
    "32B": "Qwen/Qwen2.5-32B",
    "70B": "meta-llama/Llama-3.1-70B",
    "72B": "Qwen/Qwen2.5-72B",
    "405B": "meta-llama/Llama-3.1-405B",
}
"""The model that a bare size means: a dense one that is much used, since a size alone says no shape."""


def of_size(text: str) -> str:
    """Return the name of the model that a bare size means; any other text as it is.

    >>> of_size("70b"), of_size("gpt2")
    ('meta-llama/Llama-3.1-70B', 'gpt2')
    """
    return SIZES.get(text.upper(), text)


def find(name: str) -> CatalogModel | None:
    """Return the model of a catalog name, spelled as for `get`; None where there is none."""
    table = _by_plain_name()
    return table.get(_plain(name)) or table.get(_plain(name.rpartition("/")[2]))


def get(name: str) -> CatalogModel:
    """The model of a catalog name; case, separators and the organisation may be left out.

    >>> get("Llama-3.1-8B").name, get("gpt2").architecture.num_layers
    ('meta-llama/Llama-3.1-8B', 12)
    """
    if (entry := find(name)) is not None:
        return entry
    names = [*(model.name for model in catalog()), *(model.name.rpartition("/")[2] for model in catalog())]
    hint = f"; did you mean {of_size(name)}?" if of_size(name) != name else _family(name) or closest(name, names)
    if re.fullmatch(r"\d+(\.\d+)?[bB]", name):
        hint = f"; the sizes that stand for a model are {', '.join(SIZES)}"
    instead = "give a catalog name, or the path of a config.json or of its directory"
    more = f" Or {instead}" if hint.endswith("?") else f"; {instead}"
    raise UsageError(f"no model is called {name!r}{hint}{more}")


def _family(name: str) -> str:
    """Return a hint with models whose names begin with the words and numbers of a name that is none itself.

    >>> _family("llama3"), _family("x")
    ('; did you mean Llama-3.1-8B, Llama-3.1-70B, Llama-3.1-405B?', '')
    """
    start = _words(name)
    near = [spelled for spelled in _spellings() if start and _words(spelled)[: len(start)] == start]
    return f"; did you mean {', '.join(near[:3])}?" if near else ""


def _words(name: str) -> list[str]:
    """Return the words and numbers of a name: `llama3` is one of Llama 3, and `llama-30b` is not."""
    return re.findall(r"[a-z]+|[0-9]+", name.casefold())


@cache
def _spellings() -> tuple[str, ...]:
    """Return the names that a hint may give, without the organisation; of twins the one not tuned on instructions."""
    names = (model.name.rpartition("/")[2] for model in catalog())
    return tuple(dict.fromkeys(name for name in names if "nstruct" not in name))


def resolve(text: str) -> CatalogModel:
    """A model by catalog name, or by the path of a Hugging Face `config.json` or of its directory."""
    path = Path(text).expanduser()
    if not (path.exists() or text.endswith(".json") or text.startswith((".", "/", "~"))):
        return get(text)
    # Readers of all families of config.json: most plans name models of the catalog.
    from charter.catalog.huggingface import read_config

    reading = read_config(path)
    return CatalogModel(
        name=text,
        architecture=reading.architecture,
        assumption="; ".join(filter(None, (reading.sentence, _assumed(reading.architecture)))),
        published_parameters=None,
        aliases=(),
        note="",
        provenance=Provenance(source=str(path), as_of="now", confidence="read from the file"),
        stored=reading.stored,
    )


@cache
def catalog() -> tuple[CatalogModel, ...]:
    """Every known model."""
    file = DATA / "models.toml"
    return read_models(file.read_text(encoding="utf-8"), file.name)


def read_models(text: str, file: str) -> tuple[CatalogModel, ...]:
    """Models of a TOML text in the layout of `models.toml`."""
    return tuple(_model(block, file, number) for number, block in enumerate(tomllib.loads(text)["model"], start=1))


def _model(block: Mapping[str, Any], file: str, number: int) -> CatalogModel:
    for key in ("name", "source", "as_of", "confidence", "architecture"):
        if not block.get(key):
            raise CatalogError(f"{file}, row {number}, column {key}: is empty; every model needs it")
    shape = dict(block["architecture"])
    try:
        parts = {key: kind(**shape.pop(key)) for key, kind in _PARTS.items() if key in shape}
        architecture = Architecture(**shape, **parts)
    except TypeError as error:
        raise CatalogError(f"{file}, row {number}, column architecture: {error}") from None
    return CatalogModel(
        name=block["name"],
        architecture=architecture,
        published_parameters=block.get("parameters"),
        aliases=tuple(block.get("aliases", ())),
        note=block.get("note", ""),
        provenance=Provenance(source=block["source"], as_of=block["as_of"], confidence=block["confidence"]),
        assumption=_assumed(architecture),
        stored=block.get("stored", "bf16"),
    )


def _assumed(architecture: Architecture) -> str:
    """Return what a plan assumes of sparse attention; empty without."""
    indexer = architecture.sparse_indexer
    if indexer is None:
        return ""
    text = (
        f"attention reads only the {indexer.top_k:,} positions that its indexer chooses, and the indexer is not trained"
    )
    return f"{text}; where a stack masks full attention instead, long sequences cost more than planned"


_PARTS: Mapping[str, Callable[..., Any]] = {
    "mixture": MixtureOfExperts,
    "latent_attention": LatentAttention,
    "sparse_indexer": SparseIndexer,
    "state_space": StateSpace,
    "encoder": Encoder,
}


@cache
def _by_plain_name() -> Mapping[str, CatalogModel]:
    table: dict[str, CatalogModel] = {}
    for model in catalog():
        for name in (model.name, *model.aliases):
            table.setdefault(_plain(name), model)
            table.setdefault(_plain(name.rpartition("/")[2]), model)
    return table


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum() or letter in "./")
