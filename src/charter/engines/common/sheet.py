"""One YAML file of an engine while it is filled in: every key that is written is told to the mapping."""

from collections.abc import Mapping

import yaml

from charter.engines.common.mapping import FieldMapper


class Sheet:
    """A file of dotted keys, and what each field of the stage became in it."""

    def __init__(self, mapper: FieldMapper, file: str) -> None:
        self.mapper = mapper
        self.file = file
        self.values: dict[str, object] = {}

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
