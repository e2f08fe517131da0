"""docs/reference/exit-codes.md lists what charter.errors defines."""

import re
from pathlib import Path

from charter import errors

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "exit-codes.md"


def documented() -> dict[int, set[str]]:
    """Exit code -> labels, from the rows of the page's table."""
    rows = re.findall(r"^\| (\d+) \|[^|]*\|([^|]*)\|", PAGE.read_text(), flags=re.MULTILINE)
    return {int(code): set(re.findall(r"`(\w+)`", labels)) for code, labels in rows}


def defined() -> dict[int, set[str]]:
    codes: dict[int, set[str]] = {}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.CharterError):
            codes.setdefault(value.exit_code, set()).add(value.label)
    return codes


def test_the_page_lists_every_code_and_label():
    assert documented() == {0: set(), **defined(), 130: set()}


def test_the_tree_in_the_docstring_has_every_exception_with_its_code():
    tree = dict(re.findall(r"^ +(\w+) {2,}(\d+)", errors.__doc__ or "", flags=re.MULTILINE))
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert tree == {item.__name__: str(item.exit_code) for item in classes}
