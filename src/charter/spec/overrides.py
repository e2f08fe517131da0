"""`--set a.b=c` and `CHARTER_A__B=c`: single values put over those of the file, before anything is checked.

The value is read as YAML. A path may name any key that the file may have, given or not; models, data sets and
stages must exist, unless the whole entry is given. Order of strength: file, environment, `--set`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from charter.errors import Problem
from charter.spec.bind import known_keys
from charter.spec.project import Project
from charter.spec.suggest import did_you_mean, nearest
from charter.spec.yaml_source import Document, Mark, Path_, dotted, kind_of, parse_value

ENV_PREFIX = "CHARTER_"
NAMED_SECTIONS = ("models", "data", "pipeline")


def apply_overrides(document: Document, overrides: Sequence[str], env: Mapping[str, str]) -> list[Problem]:
    """Put the environment's and then the command line's values into the document."""
    problems = []
    for name, text in sorted(env.items()):
        parts = _env_path(name)
        if parts is not None:
            keys = _match_case(document.value, parts)
            problems += _put(document, keys, text, origin=f"environment {name}={text}")
    for override in overrides:
        path, equals, text = override.partition("=")
        origin = f"--set {override}"
        if not equals or not path.strip():
            message = "write it like --set pipeline.ppo.learning_rate=1e-6"
            problems.append(Problem(message=message, file=origin))
        else:
            problems += _put(document, path.strip().split("."), text, origin=origin)
    return problems


def _env_path(name: str) -> list[str] | None:
    """The parts of a variable's name if it is an override: it has `__`, or is a key of the top level."""
    if not name.startswith(ENV_PREFIX):
        return None
    rest = name[len(ENV_PREFIX) :]
    top_level = rest.lower() in known_keys(Project)
    return rest.split("__") if "__" in rest or top_level else None


def _match_case(value: Any, parts: Sequence[str]) -> list[str]:
    """The parts in the spelling of the file's keys; variables are often written in capitals."""
    found = []
    for part in parts:
        known = value if isinstance(value, dict) else {}
        spelled = next((key for key in known if key == part), None)
        spelled = spelled or next((key for key in known if key.lower() == part.lower()), part.lower())
        found.append(spelled)
        value = known.get(spelled)
    return found


def _put(document: Document, keys: Sequence[str], text: str, *, origin: str) -> list[Problem]:
    try:
        value = parse_value(text)
    except ValueError as error:
        return [Problem(message=str(error), file=origin)]
    holder: Any = document.value
    path: Path_ = ()
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        step = _step(holder, key)
        if step is None or (not last and _names_nothing(path, holder, step)):
            return [_unknown(path, key, holder, origin)]
        path = (*path, step)
        if last:
            holder[step] = value
        elif isinstance(step, str) and holder.get(step) is None:
            holder[step] = {}
            document.marks[path] = Mark(origin=origin)
        holder = holder[step]
    _forget(document, path)
    document.marks[path] = Mark(origin=origin)
    return []


def _step(holder: Any, key: str) -> str | int | None:
    """How `key` gets into a mapping or a list; None when it does not."""
    if isinstance(holder, dict):
        return key
    if isinstance(holder, list) and key.isdecimal() and int(key) < len(holder):
        return int(key)
    return None


def _names_nothing(path: Path_, holder: Any, step: str | int) -> bool:
    """Whether a path goes through a model, data set, stage or top-level key that is not there."""
    if not path:
        return step not in known_keys(Project)
    return path[0] in NAMED_SECTIONS and len(path) == 1 and step not in holder


def _unknown(path: Path_, key: str, holder: Any, origin: str) -> Problem:
    known = list(holder) if isinstance(holder, dict) else []
    if not path:
        known = known_keys(Project)
    where = dotted(path) or "the file"
    if isinstance(holder, list):
        message, hint = f"{where} is a list of {len(holder)}; {key!r} is not a position in it", "count from 0"
    elif isinstance(holder, dict):
        message, hint = f"{where} has no {key!r}", did_you_mean(key, known)
        guess = nearest(key, known)
        hint = f"did you mean {dotted((*path, guess))!r}?" if guess else hint
    else:
        message, hint = f"{where} is {kind_of(holder)}, so it has no {key!r}", ""
    return Problem(message=message, file=origin, hint=hint)


def _forget(document: Document, path: Path_) -> None:
    """Drop the marks of what an override replaced."""
    for known in [known for known in document.marks if known[: len(path)] == path]:
        del document.marks[known]
