"""A command group that can be called without a subcommand: `charter prices H100` means `charter prices list H100`."""

from difflib import get_close_matches
from typing import Any

from typer.core import TyperGroup

HELP = ("--help", "-h")


class ListByDefault(TyperGroup):
    """A group whose `list` runs when the first word is none of its commands."""

    def is_meant(self, word: str) -> bool:
        """Whether a word is a subcommand or nearly one, so that a slip is told as such."""
        return bool(get_close_matches(word, list(self.commands), n=1, cutoff=0.75))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` in front where no subcommand (and no help) is asked for."""
        if not args or not (args[0] in HELP or self.is_meant(args[0])):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class ShowOrListByDefault(ListByDefault):
    """A group that shows what is named: `charter gpus H100` means `charter gpus show H100`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `show` in front of a name; otherwise as `ListByDefault`."""
        if args and not args[0].startswith("-") and not self.is_meant(args[0]):
            args = ["show", *args]
        return super().parse_args(ctx, args)
