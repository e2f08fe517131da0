"""Read a Hugging Face `config.json` as an `Architecture`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from charter.catalog.config_readers import DENSE_READERS as DENSE
from charter.catalog.config_readers import EXPERT_READERS as EXPERTS
from charter.catalog.config_readers import Config
from charter.catalog.config_variants import HYBRID_READERS as HYBRID
from charter.catalog.config_variants import UNSUPPORTED
from charter.catalog.config_variants import VISION_READERS as VISION
from charter.errors import DataError
from charter.spec.architecture import Architecture
from charter.spec.checks import check_heads


def architecture_from_config(path: Path | str) -> Architecture:
    """The architecture a `config.json` (or the directory that holds one) describes."""
    file = _config_file(Path(path).expanduser())
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{file} is not valid JSON ({error})") from None
    except RecursionError:
        raise DataError(f"{file} is nested too deeply to be a configuration") from None
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror})") from None
    if not isinstance(config, dict):
        raise DataError(f"{file} holds {type(config).__name__}, not a JSON object as a Hugging Face config.json does")
    return architecture_from_mapping(config, str(file))


def architecture_from_mapping(config: Config, file: str = "config.json") -> Architecture:
    """The architecture a configuration describes, by its `model_type`."""
    kind = str(config.get("model_type"))
    if kind in UNSUPPORTED:
        raise DataError(f"{file}: model_type {kind!r} cannot be planned: {UNSUPPORTED[kind]}")
    if isinstance(config.get("text_config"), dict) and (kind not in _READERS or "vision_config" not in config):
        return architecture_from_mapping(config["text_config"], f"{file}, text_config")
    reader = _READERS.get(kind)
    if reader is None:
        raise DataError(f"{file}: model_type {kind!r} is not known; known are {', '.join(sorted(_READERS))}")
    try:
        shape = reader(config)
        wrong = next(check_heads(shape, kind), None)
    except KeyError as missing:
        raise DataError(f"{file}: the key {missing} is missing; a {kind} configuration needs it") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"{file}: a value has the wrong type or size ({error})") from None
    if wrong is not None:
        raise DataError(f"{file}: {wrong.path}: {wrong.message}")
    return shape


def _config_file(path: Path) -> Path:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        what = "the directory has no config.json" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: {what}; expected a Hugging Face model directory or the path of its config.json")
    return file


_READERS: Mapping[str, Callable[[Config], Architecture]] = {**DENSE, **EXPERTS, **HYBRID, **VISION}
