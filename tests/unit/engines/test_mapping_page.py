"""docs/reference/engine-mapping.md is current, and tells of every engine and field."""

from dataclasses import fields

import pytest

import engine_tables
import generated
from charter.engines import handover_engines
from charter.engines.common.mapping import CHARTERS_OWN
from charter.spec.layout import Layout
from plain_stages import STAGES

PAGE = engine_tables.PAGE.read_text()


def test_the_page_is_current():
    assert generated.with_part(PAGE, engine_tables.reference()) == PAGE, "run `make docs`"


@pytest.mark.parametrize("kind", STAGES)
def test_every_field_and_every_engine_of_a_kind_is_on_the_page(kind):
    section = PAGE.partition(f"## `kind: {kind}`\n")[2].partition("\n## ")[0]
    names = {item.name for item in fields(STAGES[kind])} - set(CHARTERS_OWN)
    names |= {f"layout.{item.name}" for item in fields(Layout)} | {"seed"}
    assert [name for name in sorted(names) if f"| `{name}` |" not in section] == []
    head = next(line for line in section.splitlines() if line.startswith("| field"))
    assert [engine.title in head for engine in handover_engines()] == [
        kind in engine.kinds for engine in handover_engines()
    ]


def test_every_engine_has_its_version_and_its_promise_in_the_first_table():
    for engine in handover_engines():
        line = next(line for line in PAGE.splitlines() if line.startswith(f"| {engine.title} (`{engine.name}`)"))
        assert engine.version in line
        assert any(words in line.rpartition(" | ")[2] for words in ("bit-exact", "same data order", "best effort"))
