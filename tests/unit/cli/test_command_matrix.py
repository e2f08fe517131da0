"""The matrix of `make test-system` knows every command: one that it does not know ends all of it."""

import command_matrix


def test_every_command_is_in_the_matrix():
    assert sorted(command_matrix.ARGUMENTS) == command_matrix.commands()
