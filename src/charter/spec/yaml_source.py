"""YAML text as plain values, with the line that every value stands on.

Scalars follow YAML 1.2 (core schema), not 1.1: `3e-4` is a number, `no` and `off` are text. Underscores may
group the digits of a number. What other tools read in silence is refused: duplicate keys, tags, merge keys.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from charter.errors import Problem, SpecError
from charter.redaction import without_secrets, without_value

Path_ = tuple[str | int, ...]
"""Keys and list positions from the top of the file to a value."""

MAX_VALUES = 100_000
"""Values in one file, aliases counted each time: a guard against files that unfold without end."""

MAX_BYTES = 2**20
"""Of one file (judgement; the longest template has 4 KB): composing YAML takes a minute for 50 MB of it."""

MAX_NUMBER_CHARACTERS = 100
"""Longer runs of digits are text; Python refuses to convert very long ones."""

_KEY_ALONE = re.compile(r"[ \t-]*[\"']?([\w.-]+)[\"']?[ \t]*:[ \t]*(?:[|>][+0-9-]*)?[ \t]*")
"""A key whose value stands in the lines below it."""
_INT = re.compile(r"[-+]?[0-9](?:_?[0-9])*")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9](?:_?[0-9])*|[0-9](?:_?[0-9])*(?:\.(?:[0-9](?:_?[0-9])*)?)?)(?:[eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Origin of a value: a line of a file, or an override such as `--set seed=3`."""

    origin: str
    line: int | None = None
    source_line: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """The values of one file and where each of them stands.

    `value` and `marks` are still being edited by presets and overrides; the frozen result is `Project`.
    """

    value: dict[str, Any]
    marks: dict[Path_, Mark] = field(default_factory=dict)

    def mark(self, path: Path_) -> Mark:
        """The mark of a path, or of the nearest thing around it that was written."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, Mark(origin=""))

    def problem(self, path: Path_, message: str, *, hint: str = "") -> Problem:
        """A problem of the value at `path`, with its place."""
        mark = self.mark(path)
        return Problem(
            message=message,
            path=dotted(path),
            file=mark.origin,
            line=mark.line,
            source_line=mark.source_line,
            hint=hint,
        )


def dotted(path: Path_) -> str:
    """A path as people write it.

    >>> dotted(("pipeline", "ppo", "prompts", 1))
    'pipeline.ppo.prompts[1]'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) YAML 1.2 scalar.

    >>> scalar("3e-4"), scalar("150_000"), scalar("no"), scalar("true"), scalar("H100:8")
    (0.0003, 150000, 'no', True, 'H100:8')
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > MAX_NUMBER_CHARACTERS:
        return text
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if _OCTAL.fullmatch(text) or _HEX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def read_document(path: Path) -> Document:
    """The YAML mapping in a file, or a `SpecError` that names what is wrong with the file."""
    if path.is_dir():
        raise SpecError(f"{path} is a directory; name the file in it, for example {path / 'charter.yaml'}")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise SpecError(f"{path} is larger than {MAX_BYTES:,} bytes; a project file has a few thousand")
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise SpecError(f"{path} does not exist; `charter init --template cai-tiny DIR` writes one") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None
    return parse_document(text, origin=str(path))


def parse_document(text: str, *, origin: str) -> Document:
    """The YAML mapping in a text; `origin` names it in messages."""
    node = _compose(text, origin=origin)
    if node is None:
        raise SpecError(f"{origin} is empty; `charter init --template cai-tiny DIR` writes an example")
    reader = _Reader(origin, text.splitlines())
    value = reader.value(node, ())
    if not isinstance(value, dict):
        message = f"the file holds {kind_of(value)}; it must hold `key: value` lines, beginning with `name:`"
        reader.problems.append(Problem(message=message, file=origin, line=node.start_mark.line + 1))
    if reader.problems:
        raise SpecError(reader.problems)
    return Document(value=value, marks=reader.marks)


def parse_value(text: str) -> Any:
    """One value in YAML, as given on a command line; raises ValueError with a plain sentence."""
    try:
        node = _compose(text, origin="value")
    except SpecError as error:
        raise ValueError(f"{text!r} is not a YAML value: {error.problems[0].message}") from None
    reader = _Reader("value", text.splitlines())
    value = None if node is None else reader.value(node, ())
    if reader.problems:
        raise ValueError(f"{text!r}: {reader.problems[0].message}")
    return value


def kind_of(value: object) -> str:
    """Return the kind of a value in words: `a list`, `text "abc"`, `the number 3`."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {value!r}" if len(value) <= 60 else "a long text"
        case dict():
            return "a mapping"
        case _:
            return "a list"


MOST_DEPTH = 100
"""Of brackets within brackets; project files have four."""


class _Loader(yaml.BaseLoader):
    """Composes nodes whose tag says only how a scalar was written; the meaning is read by `scalar`."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Return how a node was written, as its tag."""
        if kind is yaml.ScalarNode:
            return "plain" if implicit[0] else "quoted"
        return "mapping" if kind is yaml.MappingNode else "sequence"

    def fetch_flow_collection_start(self, token: Any) -> None:
        """Refuse depth early: the scanner's time grows with its square."""
        if self.flow_level >= MOST_DEPTH:
            raise RecursionError
        super().fetch_flow_collection_start(token)


def _compose(text: str, *, origin: str) -> yaml.Node | None:
    loader: Any = None
    try:
        loader = _Loader(text)
        node: yaml.Node | None = loader.get_single_node()
        return node
    except yaml.MarkedYAMLError as error:
        raise SpecError([_syntax_problem(error, text, origin)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"character {error.character!r} is not allowed in YAML"
        raise SpecError([Problem(message=message, file=origin, line=line)]) from None
    except RecursionError:
        raise SpecError([Problem(message="the YAML is nested too deeply", file=origin)]) from None
    finally:
        if loader is not None:
            loader.dispose()


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, origin: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = None if mark is None else mark.line + 1
    lines = text.splitlines()
    quoted = lines[line - 1] if line and line <= len(lines) else ""
    what = " ".join(part for part in (error.context, error.problem) if part)
    hint = ""
    if "\t" in quoted or "\\t" in what:
        hint = "YAML is indented with spaces; replace the tab"
    elif "mapping values are not allowed" in what:
        hint = "a value that holds ': ' needs quotes, and keys of one block the same indentation"
    elif "single document" in what:
        hint = "one file holds one project; remove the `---` in the middle"
    source_line = _quotable(lines)[line - 1] if quoted and line else ""
    return Problem(message=f"not valid YAML: {what}", file=origin, line=line, source_line=source_line, hint=hint)


def _quotable(lines: list[str]) -> list[str]:
    """Each line as messages may quote it: one that is or belongs to the value of a secret's name is not quoted."""
    quotable, above = list[str](), list[tuple[int, bool]]()
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip():
            while above and above[-1][0] >= indent:
                above.pop()
        is_hidden = any(hides for at, hides in above if at < indent)
        is_hidden = is_hidden or without_value(without_secrets(line)) != line
        quotable.append("" if is_hidden else line)
        if line.strip():
            key = _KEY_ALONE.fullmatch(line)
            above.append((indent, key is not None and without_value(f"{key[1]}: value") != f"{key[1]}: value"))
    return quotable


class _Reader:
    """Turns nodes into values; collects marks and problems on the way."""

    def __init__(self, origin: str, lines: list[str]) -> None:
        self.origin, self.lines = origin, _quotable(lines)
        self.marks: dict[Path_, Mark] = {}
        self.problems: list[Problem] = []
        self._open: list[yaml.Node] = []
        self._count = 0

    def value(self, node: yaml.Node, path: Path_) -> Any:
        """Return the value of a node; problems are collected."""
        self.marks.setdefault(path, self._mark(node))
        self._count += 1
        if node in self._open or self._count > MAX_VALUES:
            what = "an alias that contains itself" if node in self._open else f"more than {MAX_VALUES:,} values"
            if not any(what in problem.message for problem in self.problems):
                self._complain(node, path, f"the file has {what}")
            return None
        if not self._tag_is_known(node, path):
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return dict(self._entries(node, path))
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        finally:
            self._open.pop()

    def _scalar(self, node: yaml.ScalarNode, path: Path_) -> Any:
        text = node.value
        if any("\ud800" <= character <= "\udfff" for character in text):
            self._complain(node, path, "the text holds half of a surrogate pair, which is not a character")
            return ""
        return scalar(text) if node.tag == "plain" else text

    def _entries(self, node: yaml.MappingNode, path: Path_) -> Iterator[tuple[str, Any]]:
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(key_node, path, "a key must be a word, not a list or a mapping")
            elif key in first_lines:
                message = f"the key {key!r} is given twice (first on line {first_lines[key]}); keep one"
                self._complain(key_node, (*path, key), message)
            elif key == "<<" and key_node.tag == "plain":
                self._complain(key_node, path, "merge keys (<<) are not part of YAML 1.2; write the fields out")
            else:
                first_lines[key] = line
                self.marks[(*path, key)] = self._mark(key_node)
                yield key, self.value(value_node, (*path, key))

    def _tag_is_known(self, node: yaml.Node, path: Path_) -> bool:
        if node.tag in ("plain", "quoted", "mapping", "sequence", "tag:yaml.org,2002:str"):
            return True
        self._complain(node, path, f"the tag {node.tag!r} is not supported; write the plain value")
        return False

    def _mark(self, node: yaml.Node) -> Mark:
        line = node.start_mark.line + 1
        return Mark(origin=self.origin, line=line, source_line=self.lines[line - 1] if line <= len(self.lines) else "")

    def _complain(self, node: yaml.Node, path: Path_, message: str) -> None:
        mark = self._mark(node)
        self.problems.append(
            Problem(
                message=message,
                path=dotted(path),
                file=mark.origin,
                line=mark.line,
                source_line=mark.source_line,
            )
        )
