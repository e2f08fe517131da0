"""CONTRIBUTING.md holds the map of the house: one line for every module, current."""

from pathlib import Path

import pytest

import generated
import module_map

ROOT = Path(__file__).resolve().parents[3]
MODULES = sorted((ROOT / "src" / "charter").rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_every_module_says_in_one_line_what_it_is(module):
    line = module_map.first_line(module)
    assert line, f"{module} has no docstring; its first line stands in the map of CONTRIBUTING.md"
    assert line.endswith("."), f"the first line of {module} is not a sentence: {line!r}"


def test_the_map_is_current():
    page = module_map.PAGE.read_text()
    assert generated.with_part(page, module_map.module_map()) == page, "run `make docs`"


def test_the_map_has_one_line_for_every_module():
    lines = [line for line in module_map.module_map().splitlines() if line]
    packages = (ROOT / "src" / "charter").glob("*/__init__.py")
    assert len(lines) == len([*packages, *(path for path in MODULES if path.name != "__init__.py")])


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="no part between"):
        generated.with_part("# A page", "text")
