"""The pages of the documentation hang together: links lead somewhere, every page can be found, commands exist."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import cli_reference
from charter.cli.common import ListByDefault
from charter.cli.main import COMMANDS, SHORT, load

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOTICES = (ROOT / "THIRD_PARTY_NOTICES.md").read_text()


def targets(page: Path) -> list[Path]:
    """The files of this repository that a page links to."""
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text())
    return [(page.parent / link).resolve() for link in links if "://" not in link and not link.startswith("mailto:")]


HISTORY = ("CHANGELOG.md", "0033-sixteen-verbs.md")
"""Pages that name verbs as they were called at the time."""
FENCED = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"--?[a-zA-Z][^=]*")


def commands(text: str) -> Iterator[list[str]]:
    """The words of every `charter` line of a page: in its blocks and in code within a sentence."""
    text = re.sub(r"\\\n\s*", " ", text)
    lines = re.findall(r"^\s*(?:\$ )?(?:\.venv/bin/)?(charter .*)", "\n".join(FENCED.findall(text)), re.MULTILINE)
    for line in [*lines, *re.findall(r"`(charter [^`]+)`", FENCED.sub("", text))]:
        words = shlex.split(line, comments=True)[1:]
        ends = [at for at, word in enumerate(words) if word in {"|", "&&", ">", ";"}]
        yield [word.rstrip(",;") for word in words[: min(ends, default=len(words))]]


def what_is_wrong(words: list[str]) -> str:
    """The first word that is no verb, subcommand or option; empty where all are."""
    words = [*SHORT.get(words[0], words[0]).split(), *words[1:]]
    if words[0].startswith("-"):
        return ""
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), "")
    if not name:
        return words[0]
    command, rest = loaded(name), words[len(name.split()) :]
    if isinstance(command, ListByDefault) and not (rest and rest[0] in command.commands):
        rest = ["list", *rest]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    if rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        return rest[0]
    options = {"-h", "--help", *(option for item in command.params for option in (*item.opts, *item.secondary_opts))}
    given = [match[0] for word in rest if (match := OPTION.match(word))]
    return next((option for option in given if option not in options), "")


@cache
def loaded(verb: str) -> Any:
    """The command of a verb, imported once."""
    return load(verb)


@pytest.mark.parametrize(
    "line", ["charter pln", "charter plan --no-such", "charter catalog prices list --x", "charter cost zz"]
)
def test_a_command_that_is_none_is_seen(line):
    assert [what_is_wrong(words) for words in commands(f"`{line}`")] == [line.split()[-1]]


def test_every_command_of_the_pages_exists():
    pages = [page for page in PAGES if page.name not in HISTORY]
    named = [(str(page), words) for page in pages for words in commands(page.read_text())]
    assert len(named) > 500
    assert [(page, " ".join(words)) for page, words in named if what_is_wrong(words)] == []


def test_every_command_that_a_help_names_exists():
    helps = [command.help or "" for _, command in cli_reference.commands()]
    helps += [getattr(item, "help", "") or "" for _, command in cli_reference.commands() for item in command.params]
    named = [words for text in helps for words in commands(" ".join(text.split()))]
    assert len(named) > 10
    assert [" ".join(words) for words in named if what_is_wrong(words)] == []


def test_every_link_leads_to_a_file():
    assert len(PAGES) > 50
    assert [(str(page), str(target)) for page in PAGES for target in targets(page) if not target.exists()] == []


def anchors(page: Path) -> set[str]:
    """The names that links within a page may use: its headings as forges and the site spell them, and explicit ones."""
    text = FENCED.sub("", page.read_text())
    names: list[str] = []
    for heading in re.findall(r"^#+ +(.*?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        names.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    again = [f"{name}-{names[:at].count(name)}" for at, name in enumerate(names) if name in names[:at]]
    return {*names, *again, *re.findall(r'(?:id|name)="([^"]+)"', text)}


def dead_anchors(page: Path, text: str) -> list[str]:
    """The links of a page's text to a heading that is not there."""
    links = [link.split("#", 1) for link in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", text) if "://" not in link]
    there = [(name, anchor, (page.parent / name).resolve() if name else page) for name, anchor in links]
    return [
        f"{name}#{anchor}" for name, anchor, target in there if target.suffix == ".md" and anchor not in anchors(target)
    ]


def test_every_anchor_of_a_link_is_a_heading_there():
    run = ROOT / "docs" / "guides" / "run.md"
    assert dead_anchors(run, "[a](#when-it-ends) [b](#when-it-end) [c](run.md#none)") == ["#when-it-end", "run.md#none"]
    texts = {page: FENCED.sub("", page.read_text()) for page in PAGES}
    assert sum(text.count(".md#") for text in texts.values()) > 30
    assert [(str(page), link) for page, text in texts.items() for link in dead_anchors(page, text)] == []


def test_every_page_can_be_reached_from_the_index():
    reached: set[Path] = set()
    waiting = [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [target for target in targets(page) if target.suffix == ".md" and target.exists()]
    assert [str(page) for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in reached] == []


@pytest.mark.parametrize("work", ["anthropics/hh-rlhf", "anthropics/evals", "Chart.js"])
def test_every_work_of_others_that_is_shipped_has_its_notice(work):
    assert work in NOTICES


def test_decisions_are_numbered_without_gaps_and_say_context_decision_consequences():
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [page.name[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text()
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences")), page.name


def test_every_file_named_in_the_notices_is_there():
    named = re.findall(r"`(src/[^`]+)`", NOTICES)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
