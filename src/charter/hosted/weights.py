"""Check of a model that an engine has left: headers that fit, every tensor there, of its shape, and finite."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from charter.artifacts.safetensors_file import check_weight_files, read_header
from charter.errors import DataError, StageError
from charter.models.language_model import empty_language_model

_MOST_SHOWN = 5


def check_language_model(directory: Path, *, beside: Collection[str] = ()) -> None:
    """Raise a `StageError` with what is wrong with a language model's weights; `beside` names other weight files."""
    try:
        check_weight_files(directory)
        wrong = _wrong(directory, [path for path in sorted(directory.glob("*.safetensors")) if path.name not in beside])
    except DataError as error:
        raise StageError(f"the weights that the engine has left are damaged: {error}") from None
    if wrong:
        more = f" and {len(wrong) - _MOST_SHOWN} more" if len(wrong) > _MOST_SHOWN else ""
        raise StageError(f"the weights that the engine has left are no model: {'; '.join(wrong[:_MOST_SHOWN])}{more}")


def _wrong(directory: Path, files: Sequence[Path]) -> list[str]:
    return _differences(files, empty_language_model(directory).model) or _not_finite(files)


def _differences(files: Sequence[Path], model: Any) -> list[str]:
    """Tensors that are missing, unknown, or of another shape than the configuration says."""
    shapes = {name: item.shape for path in files for name, item in read_header(path).items()}
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    tied = set(model.all_tied_weights_keys)
    wrong = [f"{name} is missing" for name in sorted(wanted.keys() - shapes.keys() - tied)]
    wrong += [f"{name} belongs to no layer" for name in sorted(shapes.keys() - wanted.keys())]
    for name in sorted(shapes.keys() & wanted.keys()):
        if shapes[name] != wanted[name]:
            wrong.append(f"{name} has the shape {list(shapes[name])}, not {list(wanted[name])}")
    return wrong


def _not_finite(files: Sequence[Path]) -> list[str]:
    """Tensors with numbers that are not finite, read one at a time."""
    from safetensors import safe_open

    wrong = []
    for path in files:
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                tensor = file.get_tensor(name)
                if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                    wrong.append(f"{name} is not finite")
    return wrong
