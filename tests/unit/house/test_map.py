"""The map in CONTRIBUTING.md is current and fits on a screen; every module says in one sentence what it is."""

from pathlib import Path

import pytest

import generated
import module_map

ROOT = Path(__file__).resolve().parents[3]
LINES_OF_A_SCREEN = 40


def offenders(sources: Path) -> list[str]:
    """Modules whose docstring does not open with a sentence."""
    modules = sorted(sources.rglob("*.py"))
    return [path.relative_to(sources).as_posix() for path in modules if not module_map.first_line(path).endswith(".")]


def test_every_module_says_in_one_line_what_it_is():
    assert offenders(ROOT / "src" / "charter") == []


def test_a_module_without_a_sentence_is_an_offender(tmp_path):
    texts = {"good": '"""A thing."""', "bare": "x = 1", "half": '"""A thing that\ngoes on."""', "empty": ""}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert offenders(tmp_path) == ["bare.py", "empty.py", "half.py"]


def test_the_map_is_current():
    page = module_map.PAGE.read_text()
    assert generated.with_part(page, module_map.module_map()) == page, "run `make docs`"


def test_the_map_has_every_package_on_one_screen():
    lines = [line for line in module_map.module_map().splitlines() if line]
    assert [line.split("`")[1].removesuffix("/").removesuffix(".py") for line in lines] == module_map.layers()
    assert len(lines) <= LINES_OF_A_SCREEN


def test_the_map_names_the_programs_of_a_package():
    train = module_map.package_line(ROOT / "src" / "charter" / "train")
    assert "`ppo`" in train
    assert "`loop`" not in train


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="no part between"):
        generated.with_part("# A page", "text")
