"""The pages of the documentation hang together: links lead somewhere, and every page can be found."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOTICES = (ROOT / "THIRD_PARTY_NOTICES.md").read_text()


def targets(page: Path) -> list[Path]:
    """The files of this repository that a page links to."""
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text())
    return [(page.parent / link).resolve() for link in links if "://" not in link and not link.startswith("mailto:")]


def test_every_link_leads_to_a_file():
    assert len(PAGES) > 50
    assert [(str(page), str(target)) for page in PAGES for target in targets(page) if not target.exists()] == []


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
