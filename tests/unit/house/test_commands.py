"""Every command has help, and the reference page shows it as it is printed."""

import pytest

import cli_reference
import generated

COMMANDS = list(cli_reference.commands())


def test_there_are_commands():
    assert COMMANDS


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_command_and_every_option_has_help(path, command):
    assert command.help, f"charter {' '.join(path)} has no help"
    silent = [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]
    assert silent == [], f"charter {' '.join(path)}: no help for {silent}"


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=" ".join)
def test_every_command_is_in_the_reference(path):
    assert f"## charter {' '.join(path)}\n" in cli_reference.PAGE.read_text(), "run `make docs`"


def test_the_reference_is_current():
    page = cli_reference.PAGE.read_text()
    assert generated.with_part(page, cli_reference.reference()) == page, "run `make docs`"
