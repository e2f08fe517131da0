"""Requests of AWS checked against the model of its service: names, types, and also enums, patterns and lengths.

botocore's own validator stops at names, types and least values.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any


def check_request(service: str, operation: str, body: dict[str, Any]) -> None:
    """Raise unless the service takes the request, as far as its model says."""
    from botocore.validate import ParamValidator

    shape = _service(service).operation_model(operation).input_shape
    report = ParamValidator().validate(body, shape)
    assert not report.has_errors(), report.generate_report()
    wrong = list(problems(shape, body, operation))
    assert not wrong, wrong


def problems(shape: Any, value: Any, where: str) -> Iterator[str]:
    """What the model's enums, patterns and lengths do not allow."""
    from botocore.model import ListShape, MapShape, StructureShape

    if isinstance(shape, StructureShape):
        for name, inner in value.items():
            yield from problems(shape.members[name], inner, f"{where}.{name}")
        return
    size = value if isinstance(value, int) else len(value)
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if (least is not None and size < least) or (most is not None and size > most):
        yield f"{where}: {size} is not between {least} and {most}"
    if isinstance(shape, ListShape):
        for number, inner in enumerate(value):
            yield from problems(shape.member, inner, f"{where}[{number}]")
    elif isinstance(shape, MapShape):
        for key, inner in value.items():
            yield from problems(shape.key, key, f"{where}.{key} (key)")
            yield from problems(shape.value, inner, f"{where}.{key}")
    elif isinstance(value, str):
        enum, pattern = getattr(shape, "enum", ()), shape.metadata.get("pattern")
        if enum and value not in enum:
            yield f"{where}: {value!r} is not one of {enum}"
        if pattern and not re.fullmatch(_python(pattern), value, re.DOTALL):
            yield f"{where}: {value!r} does not fit {pattern}"


@cache
def _service(name: str) -> Any:
    import botocore.session

    return botocore.session.get_session().get_service_model(name)


def _python(pattern: str) -> str:
    """Java's classes of characters in Python's spelling."""
    for java, python in {r"\p{L}": r"^\W\d_", r"\p{Z}": r"\s", r"\p{N}": r"\d"}.items():
        pattern = pattern.replace(java, python)
    return pattern.replace(r"[^\W\d_\s\d", r"[\w\s")
