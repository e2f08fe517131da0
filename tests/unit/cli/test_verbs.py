"""Only the verb that is asked for is imported; what is said is the same as with all of them."""

import sys

import pytest
import typer
from typer.testing import CliRunner

from charter.cli import main
from charter.cli.main import HIDDEN, VERBS, app, entry, make_app, verbs_asked


@pytest.mark.parametrize(
    ("words", "verbs"),
    [
        (["status", "-C", "x"], ("status",)),
        (["checkpoints"], ("checkpoints",)),
        ([], tuple(VERBS)),
        (["--help"], tuple(VERBS)),
        (["--version", "status"], tuple(VERBS)),
        (["statsu"], tuple(VERBS)),
    ],
)
def test_one_verb_is_enough_where_the_line_begins_with_it(words, verbs):
    assert verbs_asked(words) == verbs


@pytest.mark.parametrize("verb", VERBS)
def test_help_and_errors_are_those_of_the_whole_command_line(verb):
    words = [verb, "--help" if len(verb) % 2 else "--no-such-option"]
    alone, whole = (CliRunner().invoke(it, words, prog_name="charter") for it in (make_app([verb]), app))
    assert (alone.exit_code, alone.output) == (whole.exit_code, whole.output)
    assert f"Usage: charter {verb}" in alone.output


def test_every_verb_stands_in_help_but_the_hidden():
    group = typer.main.get_command(app)
    assert set(group.commands) == set(VERBS)
    assert {name for name, command in group.commands.items() if command.hidden} == HIDDEN


def test_the_whole_command_line_is_made_once():
    assert main.app is app
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        main.nothing_of_the_kind  # noqa: B018


def test_the_command_reads_the_words_of_its_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["charter", "statsu"])
    with pytest.raises(SystemExit) as left:
        entry()
    assert left.value.code == 2
    assert "Did you mean 'status'" in capsys.readouterr().err.replace('"', "'")
