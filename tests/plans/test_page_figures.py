"""Commands of the pages run, and print what the pages say: those that only print (`page_figures.PRINTING`)."""

import pytest

import page_figures

RUN = {
    "README.md": 3,
    "docs/concepts/memory.md": 2,
    "docs/concepts/placement.md": 2,
    "docs/concepts/search.md": 1,
    "docs/guides/ask.md": 5,
    "docs/guides/cost.md": 1,
    "docs/guides/kubernetes.md": 1,
    "docs/guides/other-engines.md": 2,
    "docs/guides/plan.md": 9,
    "docs/guides/prices.md": 2,
    "docs/guides/questions.md": 18,
    "docs/guides/scale.md": 3,
    "docs/guides/simulate.md": 5,
    "docs/guides/slurm.md": 1,
}
"""Pages with the number of their commands that are run, at least; `test_recipes` and `test_tutorial` run theirs."""
PAGE = """```console
$ charter init --template cai-smoke here
Wrote cai-smoke to here
$ charter catalog prices B200
a line that nothing prints
$ charter plan -C here --no-such-option
$ charter plan -C nowhere
```"""


@pytest.mark.parametrize("name", RUN)
def test_a_page_says_what_its_commands_print(name):
    count, wrong = page_figures.stale(page_figures.ROOT / name)
    assert not wrong, "\n".join(wrong)
    assert count >= RUN[name]


def test_stale_lines_and_commands_that_fail_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    count, wrong = page_figures.stale(page)
    assert count == 3
    assert ["nothing prints" in wrong[0], "exit code 2" in wrong[1], len(wrong)] == [True, True, 2]
