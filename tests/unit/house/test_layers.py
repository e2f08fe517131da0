"""The layers of the house: every package has one, and the linter that checks them sees every package."""

import configparser
from pathlib import Path

import module_map

ROOT = Path(__file__).resolve().parents[3]
MAY_IMPORT_TORCH = {"train", "evaluate", "feedback", "hosted", "inference", "models"}


def contracts() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    return parser


def packages() -> set[str]:
    inside = (ROOT / "src" / "charter").iterdir()
    return {path.stem for path in inside if path.is_dir() or path.suffix == ".py"} - {
        "__init__",
        "__pycache__",
    }


def test_every_package_has_a_layer_and_every_layer_is_a_package():
    assert set(module_map.layers()) == packages()
    assert len(module_map.layers()) == len(set(module_map.layers()))


def test_every_package_is_torch_free_or_is_named_as_an_exception():
    forbidden = contracts()["importlinter:contract:torch_free"]
    assert set(forbidden["source_modules"].split()) == {f"charter.{name}" for name in packages() - MAY_IMPORT_TORCH}
    assert {"torch", "transformers"} <= set(forbidden["forbidden_modules"].split())


def test_every_package_directory_is_a_package():
    bare = [path.name for path in (ROOT / "src/charter").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert [name for name in bare if not (ROOT / "src/charter" / name / "__init__.py").exists()] == []
