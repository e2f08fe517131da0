"""The mapping from our file to an engine's configuration, field by field; nothing may be left out.

A renderer says of every field of the stage, of every field of the layout and of the seed what becomes of it. What it
does not mention is a defect of the renderer (`finish` raises); what the engine cannot express is refused with the
reason, all of it at once. `Sheet` fills in one YAML file, `Arguments` a command line, with the field each value came
from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from types import MappingProxyType
from typing import Literal

import yaml

from charter.engines.common.capabilities import Capabilities
from charter.engines.common.request import Handover
from charter.errors import Problem, SpecError
from charter.spec.rewards import Environment, Reward
from charter.spec.stage_base import Stage

How = Literal["as_is", "computed", "same", "charter"]
"""`as_is`: under the engine's name for it. `computed`: by the rule of the note. `same`: what the engine does anyway,
and any other value is refused. `charter`: Charter does it, around the engine."""
STAGE, LAYOUT, SEED = "stage", "layout", "seed"
CHARTERS_OWN: dict[str, str] = {
    "kind": "chooses the engine's trainer",
    "resources": "asked of the planner; what it chose is under layout",
    "engine": "chooses the renderer",
    "checkpoint_interval": "Charter stops the engine at its next checkpoint",
    "hang_timeout": "Charter watches the engine's log and checkpoints",
    "expected_fingerprint": "checked before the start",
    "timeout": "the supervisor ends the stage",
    "needs_approval": "asked before the start",
    "engine_by": "who named the engine",
    "seed": "in the seed that the engine gets: the stage's own, else the project's",
}
"""Fields of every stage that never reach an engine, and who sees to them."""


@dataclass(frozen=True, kw_only=True)
class MappedField:
    """Outcome of mapping one field."""

    field: str
    """`stage.learning_rate`, `layout.tensor`, `seed`."""
    value: object
    how: How
    to: tuple[str, ...] = ()
    """`sft.yaml: learning_rate`, `--learning_rate`; empty for `same` and `charter`."""
    note: str = ""


NATIVE_REWARDS: Mapping[str, tuple[object, ...]] = {
    "kl_in": (None,),
    "loss_horizon": (None,),
    "ratio": ("token",),
    "surrogate": ("clip",),
    "off_policy_mask": (None,),
    "mismatch": (None,),
    "asynchrony": (None,),
    "max_age": (None,),
    "teacher": (None,),
    "divergence": (None,),
    "divergence_words": (100,),
    "teacher_share": (0.5,),
}
"""Options of `kind: ppo` that only the native engine has, and their values elsewhere."""
KNOWN_ELSEWHERE: Mapping[str, tuple[object, ...]] = {
    "loss_aggregation": ("token", "sequence"),
    "kl_estimator": ("k1", "k3"),
    "estimator": ("gae", "rloo", "grpo", "reinforce"),
}
"""Values of further options that renderers of other engines have a rule for."""
NATIVE_ONLY = "the rule of this value is rendered for the native engine alone"
REASONS_OF_VALUES: Mapping[object, str] = {
    "online_dpo": "its losses weigh answers by advantages, and none compares two answers that were just drawn",
    **dict.fromkeys(("simpo", "orpo"), "its DPO compares with a reference model, and no loss of pairs is without one"),
    "kto": "its DPO compares the two answers of a pair, and it has no loss of each answer by itself",
}
"""Reasons of single values that are known better than `NATIVE_ONLY`."""


class FieldMapper:
    """Collects what becomes of each field, and everything that the engine cannot express."""

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.rows: list[MappedField] = []
        self.problems: list[Problem] = []
        self.formulas: tuple[str, ...] = ()
        """Names of what the options of a loss mean (`formulas.py`)."""
        for name, why in CHARTERS_OWN.items():
            self.charter(f"{STAGE}.{name}", why)
        self.same(f"{LAYOUT}.offload_activations", False, "Charter writes it for the native engine alone")

    def value(self, field: str) -> object:
        """The value of `stage.x`, `layout.x` or `seed`."""
        section, _, name = field.partition(".")
        if section == SEED:
            return self.handover.seed
        return getattr(self.handover.stage if section == STAGE else self.handover.layout, name)

    def to(self, field: str, *targets: str, how: How = "as_is", note: str = "") -> None:
        """The field is written to these places; with `computed` the note says by which rule."""
        assert targets, field
        assert how == "as_is" or note, field
        self._add(MappedField(field=field, value=self.value(field), how=how, to=targets, note=note))

    def same(self, field: str, only: object | Sequence[object], why: str) -> None:
        """The engine can do nothing but `only` (one value, or a tuple of them): any other value is refused."""
        value = self.value(field)
        if value in (only if isinstance(only, tuple) else (only,)):
            self._add(MappedField(field=field, value=value, how="same", note=why))
        else:
            self.refuse(field, why)

    def fixed(self, field: str, engine: Capabilities) -> None:
        """The engine's table says which value it has."""
        stage = self.handover.stage
        (item,) = (one for one in engine.fixed if f"{STAGE}.{one.field}" == field and stage.kind in one.kinds)
        if item.refuses(stage):
            self.refuse(field, item.why, item.instead)
        else:
            self.same(field, (self.value(field),), item.why)

    def charter(self, field: str, why: str) -> None:
        """Charter itself does what the field says."""
        self._add(MappedField(field=field, value=self.value(field), how="charter", note=why))

    def refuse(self, field: str, reason: str, hint: str = "") -> None:
        """The engine cannot express the field's value."""
        section, _, name = field.partition(".")
        path = f"pipeline.{self.handover.name}.{name}" if section == STAGE else field
        self.problems.append(
            Problem(
                path=path,
                message=f"{self.handover.engine} cannot express {shown(self.value(field))}: {reason}",
                hint=hint or "change it, or take another engine (`charter artifacts export --help` lists them)",
            )
        )

    def refuse_native_rewards(
        self, further: Mapping[str, tuple[object, ...]] = MappingProxyType({}), *, ahead: str = ""
    ) -> None:
        """Refuse at once, before anything else is mapped, options of rewards and losses that stay in Charter's engine.

        `further` are options that the renderer maps itself, with the values beside the usual ones that it has a rule
        for; none named: all of them. `ahead` is why its generator never works ahead of training.
        """
        reasons = {"asynchrony": ahead, "max_age": ahead} if ahead else {}
        for name, only in NATIVE_REWARDS.items():
            if name not in further:
                self.same(f"{STAGE}.{name}", only, reasons.get(name, NATIVE_ONLY))
        for name, values in {**KNOWN_ELSEWHERE, **NATIVE_REWARDS}.items():
            more = further.get(name, ())
            takes_all = name in further and not more
            if (
                not takes_all
                and (name in KNOWN_ELSEWHERE or more)
                and self.value(f"{STAGE}.{name}") not in values + more
            ):
                self.refuse(f"{STAGE}.{name}", REASONS_OF_VALUES.get(self.value(f"{STAGE}.{name}"), NATIVE_ONLY))
        if self.problems:
            raise SpecError(self.problems)
        self.charter(f"{STAGE}.most_batches", "decides nothing here: groups are not sampled again")

    def finish(self) -> tuple[MappedField, ...]:
        """All rows in the order of the file; raises a `SpecError` with everything that was refused."""
        wanted = fields_of(self.handover.stage)
        refused = {_field_of(problem, self.handover.name) for problem in self.problems}
        mapped = {row.field for row in self.rows}
        assert mapped | refused >= set(wanted), f"not mapped: {sorted(set(wanted) - mapped - refused)}"
        if self.problems:
            raise SpecError(self.problems)
        order = {name: index for index, name in enumerate(wanted)}
        return tuple(sorted(self.rows, key=lambda row: order[row.field]))

    def _add(self, row: MappedField) -> None:
        if all(earlier.field != row.field for earlier in self.rows):
            self.rows.append(row)


def fields_of(stage: Stage) -> tuple[str, ...]:
    """Everything that a mapping has to tell of: the stage's fields, the layout's, the seed."""
    from charter.spec.layout import Layout

    own = tuple(f"{STAGE}.{item.name}" for item in fields(stage))
    return (*own, *(f"{LAYOUT}.{item.name}" for item in fields(Layout)), SEED)


def _field_of(problem: Problem, name: str) -> str:
    prefix = f"pipeline.{name}."
    return f"{STAGE}.{problem.path.removeprefix(prefix)}" if problem.path.startswith(prefix) else problem.path


def shown(value: object) -> str:
    """A value as a refusal names it; of a list of rewards their names, kinds and rubrics.

    >>> shown((Reward(name="right", kind="function", call="charter:exact"),))
    'right (function charter:exact)'
    """
    rewards = [item for item in value if isinstance(item, Reward)] if isinstance(value, tuple) else []
    if rewards:
        return ", ".join(_reward_words(item) for item in rewards)
    if isinstance(value, Environment):
        return f"turns with {', '.join(value.calls)}"
    return "nothing" if value is None else str(value)


def _reward_words(reward: Reward) -> str:
    by_rubric = f" by {reward.rubric.criteria}, {reward.rubric.ask}" if reward.rubric else ""
    return f"{reward.name} ({reward.kind} {reward.call or reward.model or ''}{by_rubric})".replace(" )", ")")


class Sheet:
    """A file of dotted keys, and what each field of the stage became in it."""

    def __init__(self, mapper: FieldMapper, file: str) -> None:
        self.mapper = mapper
        self.file = file
        self.values: dict[str, object] = {}
        self.files: dict[str, str] = {}
        """Texts that the file names."""

    def put(self, key: str, value: object) -> None:
        """A key that no single field decides."""
        *path, last = key.split(".")
        place = self.values
        for name in path:
            inner = place.setdefault(name, {})
            assert isinstance(inner, dict), key
            place = inner
        place[last] = value

    def as_is(self, field: str, *keys: str, note: str = "") -> None:
        """The field's own value under these keys."""
        for key in keys:
            self.put(key, self.mapper.value(field))
        self.mapper.to(field, *self._targets(keys), note=note)

    def computed(self, field: str, values: Mapping[str, object], note: str) -> None:
        """Keys with values that follow from the field by the rule of the note."""
        for key, value in values.items():
            self.put(key, value)
        self.mapper.to(field, *self._targets(tuple(values)), how="computed", note=note)

    def idle(self, field: str, why: str) -> None:
        """The field decides nothing in a stage with these settings, here or in Charter's own engine."""
        self.mapper.same(field, (self.mapper.value(field),), f"decides nothing here: {why}")

    def text(self) -> str:
        """The file."""
        return yaml.safe_dump(self.values, sort_keys=False, default_flow_style=False)

    def _targets(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{self.file}: {key}" for key in keys)


ASKED_IN_LIST = "a judge is asked as a reward of a list (`rewards`)"


def without_value_model(sheet: Sheet, *, algorithms: str, once: str, losses: str) -> None:
    """Fields of PPO that engines of group estimators lack: a value model, an early stop, losses of text."""
    same = sheet.mapper.same
    same("stage.bootstrap_truncated", False, "there is no value model")
    same("stage.stop_update_kl", None, once)
    same("stage.ptx_weight", 0.0, losses)
    same("stage.ptx_data", ((),), losses)
    same("stage.reward_from", "preference_model", ASKED_IN_LIST)
    same("stage.value_warmup_rollouts", 0, "there is no value model to warm up")
    for name in ("ptx_batch", "seq_len"):
        sheet.idle(f"stage.{name}", "there is no ptx_data")
    for name in ("value_learning_rate", "value_clip", "value_loss_weight", "gae_lambda", "discount"):
        sheet.idle(f"stage.{name}", f"{algorithms} no value model")


Value = str | int | float


class Arguments:
    """Collects options of a command line, and tells the mapping which field became which of them."""

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.fields = FieldMapper(handover)
        self.files: dict[str, str] = {}
        """Texts that the command line names."""
        self._given: dict[str, tuple[str, ...]] = {}

    def give(self, option: str, *values: Value) -> None:
        """An option that no field of the file decides; without values it is a switch that is turned on."""
        words = tuple(_word(value) for value in values)
        assert self._given.get(option, words) == words, f"{option} is given twice: {self._given[option]}, {words}"
        self._given[option] = words

    def to(self, field: str, option: str, *values: Value, how: How = "as_is", note: str = "") -> None:
        """A field becomes this option; its own value where none is given."""
        given = values or (self._plain(field),)
        self.give(option, *given)
        self.fields.to(field, option, how=how, note=note)

    def switch(self, field: str, option: str, *, how: How = "as_is", note: str = "") -> None:
        """A field that is true turns an option on, one that is false leaves it out."""
        if self.fields.value(field):
            self.give(option)
            self.fields.to(field, option, how=how, note=note)
        else:
            self.fields.same(field, (False, None), f"{option} is left out")

    def unused(self, field: str, why: str) -> None:
        """A field that means nothing beside the others, under any engine."""
        self.fields.charter(field, f"decides nothing here: {why}")

    def finish(self) -> tuple[tuple[str, ...], tuple[MappedField, ...]]:
        """The words of the command line, options in the order that they were given, and the mapping."""
        mapping = self.fields.finish()
        return tuple(word for option, values in self._given.items() for word in (option, *values)), mapping

    @property
    def given(self) -> Mapping[str, tuple[str, ...]]:
        """Option -> its values."""
        return MappingProxyType(self._given)

    def _plain(self, field: str) -> Value:
        value = self.fields.value(field)
        assert isinstance(value, str | int | float), f"{field} is {value!r}: say which values the option gets"
        assert not isinstance(value, bool), f"{field} is a switch"
        return value


def _word(value: Value) -> str:
    """As a parser reads it; argparse takes a negative number with an exponent for an option.

    >>> _word(1e-6), _word(-1e-6), _word(32), _word("bf16")
    ('1e-06', '-0.000001', '32', 'bf16')
    """
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f") if value < 0 else repr(value)
    return str(value)
