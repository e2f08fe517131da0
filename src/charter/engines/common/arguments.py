"""Command lines of engines that read no configuration file: options and their values, with the field each came from."""

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType

from charter.engines.common.mapping import FieldMapper, How, MappedField
from charter.engines.common.request import Handover

Value = str | int | float


class Arguments:
    """Collects options of a command line, and tells the mapping which field became which of them."""

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.fields = FieldMapper(handover)
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
