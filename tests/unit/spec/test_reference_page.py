"""docs/reference/charter-yaml.md is current and mentions every key."""

from dataclasses import fields

import pytest

import generated
import yaml_reference
from charter.spec.schema import BLOCKS
from charter.spec.stage_kinds import STAGE_KINDS

PAGE = yaml_reference.PAGE.read_text()


def test_the_page_is_current():
    assert generated.with_part(PAGE, yaml_reference.reference()) == PAGE, "run `make docs`"


@pytest.mark.parametrize("cls", [*BLOCKS, *STAGE_KINDS.values()], ids=lambda cls: cls.__name__)
def test_every_key_of_every_block_is_on_the_page(cls):
    assert [item.name for item in fields(cls) if f"| `{item.name}` |" not in PAGE] == []


@pytest.mark.parametrize("kind", STAGE_KINDS)
def test_every_kind_has_a_section(kind):
    assert f"## `kind: {kind}`" in PAGE
