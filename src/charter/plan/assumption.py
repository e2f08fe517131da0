"""A number the plan rests on that nobody measured for this project."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """One assumed value, where it comes from and from when."""

    name: str
    value: str | float | int | bool | None
    source: str
    as_of: str = ""

    def to_json(self) -> dict[str, object]:
        """The four fields."""
        return {"name": self.name, "value": self.value, "source": self.source, "as_of": self.as_of}
