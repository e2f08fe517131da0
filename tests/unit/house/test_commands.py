"""Every command has help, and the reference page shows it as it is printed."""

import cli_reference
import generated

COMMANDS = list(cli_reference.commands())


def test_there_are_commands():
    assert COMMANDS


def test_every_command_and_every_option_has_help():
    assert [" ".join(path) for path, command in COMMANDS if not command.help] == []
    options = [(" ".join(path), option) for path, command in COMMANDS for option in command.params]
    assert [(path, option.name) for path, option in options if not getattr(option, "help", None)] == []


def test_every_command_is_in_the_reference():
    page = cli_reference.PAGE.read_text()
    names = [" ".join(path) for path, _ in COMMANDS]
    assert [name for name in names if f"## charter {name}\n" not in page] == [], "run `make docs`"


def test_the_reference_is_current():
    page = cli_reference.PAGE.read_text()
    assert generated.with_part(page, cli_reference.reference()) == page, "run `make docs`"
