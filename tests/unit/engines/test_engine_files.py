"""Files of engines: weights that a command of theirs writes, and models that they saved."""

import sys

import pytest

from charter.engines.common.files import converted_weights, write_saved_model
from charter.errors import StageError

WRITE = "import pathlib, sys; place = pathlib.Path(sys.argv[1]); place.mkdir(); (place / 'a.safetensors').touch()"


def test_a_command_writes_into_an_emptied_directory(tmp_path):
    converted = tmp_path / "converted"
    converted.mkdir()
    (converted / "old.safetensors").touch()
    weights = converted_weights([sys.executable, "-c", WRITE, str(converted)], "tool", converted)
    assert weights == [converted / "a.safetensors"]


def test_a_command_that_fails_is_told_with_its_last_words(tmp_path):
    with pytest.raises(StageError, match="tool ended with 1:\nno such layer"):
        converted_weights([sys.executable, "-c", "raise SystemExit('no such layer')"], "tool", tmp_path / "converted")


def test_an_adapter_alone_is_no_model(tmp_path):
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(StageError, match="merge it with peft"):
        write_saved_model(tmp_path, tmp_path, tmp_path / "target")
