"""Identity of the model that answers: servers say it in every reply, and a change in the middle of a stage stops it."""

from charter.errors import DataError


class ModelIds:
    """The model that answered so far, for every name that was asked for."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, str]] = {}

    def check(self, asked: str, answered: str, where: str) -> None:
        """Take note of who answered; DataError when it was somebody else before.

        The name asked for and the one that answers may differ from the start: an alias stands for a dated revision.
        A reply without a name (a prompt that was filtered) says nothing.
        """
        if not answered:
            return
        first, before = self._found.setdefault(asked, (answered, where))
        if first == answered:
            return
        raise DataError(
            f"asked for {asked!r}, {where} answers as {answered!r}, where {before} was {first!r} before: labels of "
            "two models must not be mixed. Bring the first one back and run again, or start the stage anew"
        )
