"""docs/reference/charter-yaml.md is current and mentions every key."""

from dataclasses import fields

import generated
import yaml_reference
from charter.engines.project import BLOCKS
from charter.spec.stage import STAGE_KINDS

PAGE = yaml_reference.PAGE.read_text()


def test_the_page_is_current():
    assert generated.with_part(PAGE, yaml_reference.reference()) == PAGE, "run `make docs`"


def test_every_key_of_every_block_is_on_the_page():
    keys = [(cls.__name__, item.name) for cls in (*BLOCKS, *STAGE_KINDS.values()) for item in fields(cls)]
    assert [(block, key) for block, key in keys if f"| `{key}` |" not in PAGE] == []


def test_every_kind_has_a_section():
    assert [kind for kind in STAGE_KINDS if f"## `kind: {kind}`" not in PAGE] == []
