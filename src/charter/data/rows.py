"""One row of a data set: in any of TRL's formats, with soft labels or choices, checked before it is used."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal, NoReturn

from charter.errors import DataError

REASONS_KEPT = 5
"""How many of the rows left out are told one by one."""


class BadRowError(DataError):
    """One row cannot be read; the rows around it can."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One object of a data set, and the place it stands at."""

    where: str
    """For messages: `data.jsonl:7`, `data.parquet: row group 0, row 6`, `shard.tar: sample 000007`."""
    number: int
    """From 1, over all files of the data set; of JSONL, the line."""
    value: dict[str, Any]

    @property
    def id(self) -> str:
        """The row's own `id`, or its number: no path and no file name, so that copies have the same ids."""
        value = self.value.get("id")
        if value is None:
            return f"row-{self.number:06d}"
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            self.refuse(f"`id` must be a text or a whole number, found {json_kind(value)}")
        if not is_unicode(str(value)):
            self.refuse("`id` holds half of a surrogate pair, which is not a character")
        return str(value)

    def refuse(self, message: str) -> NoReturn:
        """Raise a `DataError` about this row."""
        raise BadRowError(f"{self.where}: {message}")


@dataclass
class SkippedRows:
    """The rows that were left out: how many, and why the first of them."""

    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def take(self, error: BadRowError, policy: Literal["fail", "skip"]) -> None:
        """Deal with a bad row as `on_bad_row` says: raise its error, or count it."""
        if policy == "fail":
            raise error
        self.count += 1
        if len(self.reasons) < REASONS_KEPT:
            self.reasons.append(str(error))

    def lines(self) -> list[str]:
        """Return the lines of a log about them: none when there are none."""
        if not self.count:
            return []
        more = self.count - len(self.reasons)
        lines = [f"{self.count} bad rows were left out (on_bad_row: skip)", *(f"  {item}" for item in self.reasons)]
        return [*lines, f"  and {more} more"] if more else lines

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a stage about them: none when there are none."""
        return {"skipped_rows": float(self.count)} if self.count else {}


Bad = Callable[[BadRowError], None]
"""What a reader of a format calls for a row that it cannot make; it raises, or the reader goes on."""


def parse_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object, read strictly."""
    value = parse_json(text, where)
    if not isinstance(value, dict):
        raise BadRowError(f"{where}: expected a JSON object ({{...}}), found {json_kind(value)}")
    return value


def parse_json(text: str, where: str) -> Any:
    """A JSON value, read strictly: refused is what is not JSON (NaN too), a key that is given twice, and what a parser
    cannot hold.
    """

    def refuse_constant(name: str) -> NoReturn:
        raise BadRowError(f"{where}: {name} is not a JSON value; leave the field out or give a number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields_by_name = dict(pairs)
        if len(fields_by_name) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise BadRowError(f"{where}: the key {twice[:60]!r} is given twice; keep one")
        return fields_by_name

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        hint = "; the file looks like one JSON array, write one object per line" if text.lstrip()[:1] == "[" else ""
        raise BadRowError(f"{where}: not valid JSON: {error.msg} at column {error.colno}{hint}") from None
    except (RecursionError, ValueError):
        raise BadRowError(f"{where}: the JSON is nested too deeply or holds a number too long") from None


def json_kind(value: object) -> str:
    """Return the kind of a JSON value in words."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
        case str():
            return "an empty text" if not value.strip() else "a text"
        case list():
            return "an empty list" if not value else "a list"
        case _:
            return "an object"


def is_unicode(text: str) -> bool:
    """Return True if a text can be written as UTF-8; JSON's escapes can also spell halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_line(row: Row, value: Mapping[str, Any]) -> str:
    """Return what a row has become as a line of JSON.

    What JSON or UTF-8 cannot say (1e400, a date, half a character) makes it a bad row.
    """
    try:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        row.refuse(f"cannot be written as JSON: {error}")
    if not is_unicode(line):
        row.refuse("holds half of a surrogate pair, which is not a character")
    return line


ROLES = ("system", "user", "assistant")
TEXT_ROLE = "text"
"""The role of plain text, which is not part of any conversation and gets no chat template."""
_MARKED_TURNS = re.compile(r"\s*(Human|Assistant|System):")
"""How HH-RLHF's texts begin."""
FORMATS = "messages | prompt | prompt + completion | prompt + chosen + rejected | text | question + choices | critiques"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation."""

    role: str
    content: str


Turns = tuple[Turn, ...]


def messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    """Return turns as chat templates take them.

    >>> messages([Turn(role="user", content="Hi")])
    [{'role': 'user', 'content': 'Hi'}]
    """
    return [{"role": turn.role, "content": turn.content} for turn in turns]


RowKind = Literal["messages", "prompt", "completion", "pair", "text", "question", "critique"]


def row_kind(row: Row) -> RowKind:
    """Return the format of a row."""
    keys = row.value.keys()
    if "chosen" in keys or "rejected" in keys:
        missing = [key for key in ("chosen", "rejected") if key not in keys]
        if missing:
            row.refuse(f"a preference row needs `chosen` and `rejected`; `{missing[0]}` is missing")
        return "pair"
    if "messages" in keys:
        return "messages"
    if "prompt" in keys:
        return "completion" if "completion" in keys else "prompt"
    if "question" in keys and "choices" in keys:
        return "question"
    if "init_prompt" in keys and "revision_response" in keys:
        return "critique"
    if "text" not in keys:
        row.refuse(f"no known format: found {_keys(row) or 'no field'}; known: {FORMATS}")
    return "text"


def prompt_of(row: Row) -> Turns:
    """The turns that a model is asked to answer; the last one is the user's."""
    kind = row_kind(row)
    if kind == "text":
        row.refuse("holds plain `text`; a prompt needs `prompt` or `messages`")
    if kind == "question":
        return (Turn("user", text_field(row, "question", row.value["question"])),)
    if kind == "critique":
        return critique_of(row)[:1]
    if kind == "messages":
        turns = _turns(row, "messages")
        turns = turns[:-1] if turns[-1].role == "assistant" else turns
    elif kind == "pair" and "prompt" not in row.value:
        return _implicit(row)[0]
    else:
        turns = _prompt_field(row)
    if not turns or turns[-1].role != "user":
        row.refuse("the last turn of the prompt must be the user's, so that there is something to answer")
    return turns


def pair_of(row: Row) -> tuple[Turns, str, str]:
    """Prompt, chosen answer and rejected answer of a preference row."""
    if row_kind(row) != "pair":
        row.refuse(f"is not a preference pair: needs `prompt`, `chosen` and `rejected`, found {_keys(row)}")
    if "prompt" not in row.value:
        return _implicit(row)
    prompt = prompt_of(row)
    return prompt, _answer(row, "chosen", after=prompt), _answer(row, "rejected", after=prompt)


def conversation_of(row: Row) -> Turns:
    """The turns of a row that is itself a conversation."""
    if row_kind(row) == "completion":
        return (*prompt_of(row), Turn("assistant", _answer(row, "completion")))
    if row_kind(row) == "critique":
        return critique_of(row)
    if row_kind(row) == "question":
        row.refuse("is a multiple-choice question; a conversation needs `messages`")
    turns = _turns(row, "messages")
    if not any(turn.role == "assistant" for turn in turns):
        row.refuse("the conversation has no assistant turn, so there is nothing to learn from it")
    return turns


CRITIQUE_FIELDS = ("init_prompt", "init_response", "critic_prompt", "critic_response", "revision_prompt")
"""Of a worked critique, before `revision_response`; the records of critique stages have them."""


def critique_of(row: Row) -> Turns:
    """A worked critique and revision as six turns, from its named texts or from `messages`."""
    names = (*CRITIQUE_FIELDS, "revision_response")
    missing = [name for name in names if name not in row.value]
    if not missing:
        roles = ("user", "assistant") * 3
        return tuple(
            Turn(role, text_field(row, name, row.value[name])) for role, name in zip(roles, names, strict=True)
        )
    if row_kind(row) != "messages":
        row.refuse(f"is no worked critique: it lacks {', '.join(missing)}, and has no `messages` of six turns either")
    turns = _turns(row, "messages")
    if [turn.role for turn in turns] != ["user", "assistant"] * 3:
        row.refuse(
            "a worked critique has six turns: prompt, answer, critique asked, critique, revision asked, revision"
        )
    return turns


def text_of(row: Row) -> Turns:
    """The plain text of a row, as one turn of the role `text`."""
    return (Turn(TEXT_ROLE, text_field(row, "text", row.value["text"])),)


def part_of(row: Row, count: int) -> int:
    """Return the part, from 1 to `count`, that a row belongs to: the SHA-256 of its first user turn decides.

    Rows with the same first user turn are therefore always in one part. Outer whitespace does not count.
    """
    key = _first_user_turn(row).strip().encode()
    return int.from_bytes(hashlib.sha256(key).digest(), "big") % count + 1


def _first_user_turn(row: Row) -> str:
    kind = row_kind(row)
    if kind == "text":
        turns = text_of(row)
    elif kind == "messages":
        turns = _turns(row, "messages")
    else:
        turns = prompt_of(row)
    return next((turn.content for turn in turns if turn.role == "user"), turns[0].content)


def _keys(row: Row) -> str:
    return ", ".join(f"`{key}`" for key in row.value)


def _prompt_field(row: Row) -> Turns:
    prompt = row.value["prompt"]
    if isinstance(prompt, str):
        return (Turn("user", text_field(row, "prompt", prompt)),)
    return _turns(row, "prompt")


def _turns(row: Row, key: str) -> Turns:
    turns = row.value[key]
    if not isinstance(turns, list) or not turns:
        row.refuse(f"`{key}` must be a list of turns, found {json_kind(turns)}")
    return tuple(_turn(row, f"{key}[{index}]", item) for index, item in enumerate(turns))


def _turn(row: Row, place: str, item: Any) -> Turn:
    if not isinstance(item, dict):
        row.refuse(f"`{place}` must be a turn like {{role, content}}, found {json_kind(item)}")
    role = item.get("role")
    if role not in ROLES:
        shown = repr(role) if isinstance(role, str) else "nothing" if role is None else json_kind(role)
        row.refuse(f"`{place}.role` must be {', '.join(ROLES[:-1])} or {ROLES[-1]}, found {shown}")
    if "content" not in item:
        row.refuse(f"`{place}.content` is missing")
    return Turn(role, text_field(row, f"{place}.content", item["content"]))


def text_field(row: Row, place: str, value: Any) -> str:
    """A text of a row that is not empty."""
    if not isinstance(value, str) or not value.strip():
        row.refuse(f"`{place}` must be a text that is not empty, found {json_kind(value)}")
    if not is_unicode(value):
        row.refuse(f"`{place}` holds half of a surrogate pair (\\ud800 to \\udfff), which is not a character")
    return value


def _answer(row: Row, key: str, *, after: Turns = ()) -> str:
    """The one assistant turn of a field, which may repeat the prompt before it."""
    answer = row.value[key]
    if isinstance(answer, str):
        return text_field(row, key, answer)
    turns = _turns(row, key)
    if after and turns[:-1] == after:
        turns = turns[-1:]
    if len(turns) != 1 or turns[0].role != "assistant":
        row.refuse(f"`{key}` must be one assistant turn, found {_described(turns)}")
    return turns[0].content


def _described(turns: Turns) -> str:
    return f"{len(turns)} turns" if len(turns) != 1 else f"one {turns[0].role} turn"


def _implicit(row: Row) -> tuple[Turns, str, str]:
    """Prompt and answers of two whole conversations that differ in the last turn only, or of two whole texts."""
    if isinstance(row.value["chosen"], str) and isinstance(row.value["rejected"], str):
        return _implicit_texts(row)
    chosen, rejected = _turns(row, "chosen"), _turns(row, "rejected")
    for key, turns in (("chosen", chosen), ("rejected", rejected)):
        if turns[-1].role != "assistant":
            row.refuse(f"`{key}` must end with an assistant turn")
    if chosen[:-1] != rejected[:-1]:
        row.refuse("`chosen` and `rejected` differ before their last turn; give the shared `prompt` explicitly")
    if len(chosen) < 2 or chosen[-2].role != "user":
        row.refuse("there is no `prompt`, and `chosen` and `rejected` do not begin with one")
    return chosen[:-1], chosen[-1].content, rejected[-1].content


def _implicit_texts(row: Row) -> tuple[Turns, str, str]:
    """The prompt is what both texts begin with; a space before the first difference belongs to the answers.

    So TRL 1.16.0 divides them too (its extract_prompt).
    """
    chosen, rejected = (text_field(row, key, row.value[key]) for key in ("chosen", "rejected"))
    if _MARKED_TURNS.match(chosen):
        row.refuse("`chosen` holds a conversation as one text; `charter data convert` makes turns of it")
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    shared -= shared > 0 and chosen[shared - 1] == " "
    if not chosen[:shared].strip():
        row.refuse("there is no `prompt`, and `chosen` and `rejected` do not begin with one")
    prompt = (Turn("user", chosen[:shared]),)
    if not chosen[shared:].strip() or not rejected[shared:].strip():
        row.refuse("one of `chosen` and `rejected` is the beginning of the other, so that its answer is empty")
    return prompt, chosen[shared:], rejected[shared:]


LARGEST_MARGIN = 1e6
"""Beyond any difference of scores; also what fits every number format."""


def chosen_probability_of(row: Row) -> float:
    """Return the probability that the chosen answer is the better one; 1 where the label is hard."""
    probability = row.value.get("chosen_probability", 1.0)
    valid = isinstance(probability, int | float) and not isinstance(probability, bool)
    if not valid or not math.isfinite(probability) or not 0 <= probability <= 1:
        row.refuse(f"`chosen_probability` must be a number from 0 to 1, found {json_kind(probability)}")
    return float(probability)


def margin_of(row: Row) -> float:
    """By how much the chosen answer is better, on the scale of a preference model's scores; 0 where none is given."""
    margin = row.value.get("margin", 0.0)
    valid = isinstance(margin, int | float) and not isinstance(margin, bool)
    if not valid or not 0 <= margin <= LARGEST_MARGIN:
        row.refuse(f"`margin` must be a number from 0 to {LARGEST_MARGIN:g}, found {json_kind(margin)}")
    return float(margin)


LETTERS = "ABCDEFGHIJ"
GROUP_FIELDS = ("behavior", "subject")
LONGEST_GROUP = 80
"""It is printed with figures, where no text of a data set may stand."""
ANSWER_FIELDS = ("answer", "answer_matching_behavior")


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A question with its choices."""

    id: str
    question: str
    choices: tuple[str, ...]
    answer: int
    """Which choice is right, from 0."""
    group: str = ""
    """What the question is about, where the row says (`behavior`, `subject`): figures are given by it too."""


def choice_question_of(row: Row) -> ChoiceQuestion:
    """The question of a row."""
    missing = [name for name in ("question", "choices") if name not in row.value]
    if missing:
        row.refuse(f"is no multiple-choice question: `{missing[0]}` is missing")
    texts = row.value["choices"]
    if not isinstance(texts, list) or not 2 <= len(texts) <= len(LETTERS):
        row.refuse(f"`choices` must be a list of 2 to {len(LETTERS)} texts, found {json_kind(texts)}")
    choices = tuple(text_field(row, f"choices[{index}]", item) for index, item in enumerate(texts))
    if len(set(choices)) < len(choices):
        row.refuse("two of the `choices` are the same")
    return ChoiceQuestion(
        id=row.id,
        question=text_field(row, "question", row.value["question"]),
        choices=choices,
        answer=_correct_choice(row, choices),
        group=_group(row),
    )


def _correct_choice(row: Row, choices: tuple[str, ...]) -> int:
    name = next((name for name in ANSWER_FIELDS if name in row.value), None)
    if name is None:
        row.refuse(f"does not say which choice is right; give `{ANSWER_FIELDS[0]}`")
    place = _place(row.value[name], choices)
    if place is None:
        row.refuse(
            f"`{name}` must name one of {len(choices)} choices (0 to {len(choices) - 1}, a letter, or its text), "
            f"found {json_kind(row.value[name])}"
        )
    return place


def _place(answer: Any, choices: tuple[str, ...]) -> int | None:
    """Return the index of the choice that an answer names; its own words count before a letter."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        return answer if 0 <= answer < len(choices) else None
    if not isinstance(answer, str):
        return None
    if answer in choices:
        return choices.index(answer)
    letter = answer.strip().strip("()").upper()
    return LETTERS.index(letter) if len(letter) == 1 and letter in LETTERS[: len(choices)] else None


def _group(row: Row) -> str:
    name = next((name for name in GROUP_FIELDS if name in row.value), None)
    group: Any = "" if name is None else row.value[name]
    if not isinstance(group, str) or len(group) > LONGEST_GROUP:
        row.refuse(f"`{name}` must be a name of at most {LONGEST_GROUP} characters, found {json_kind(group)}")
    return group
