"""Answers on a page are those that its commands print: a few here, all of them by `make figures`."""

from pathlib import Path

import page_figures

PAGE = Path(page_figures.ROOT, "docs/guides/questions.md")
SAMPLE = (
    "charter plan docs/examples/ppo-72b.yaml",
    "charter plan docs/examples/cai-dataset.yaml",
    "charter plan docs/examples/finetune-70b.yaml --set resources.num_nodes=2",
)


def test_a_page_says_what_its_commands_print(tmp_path):
    shown = dict(page_figures.shown_commands(PAGE.read_text(encoding="utf-8")))
    for command in SAMPLE:
        stale = page_figures.missing(shown[command], page_figures.printed_by(command, str(tmp_path)))
        assert not stale, f"$ {command}\n" + "\n".join(stale)
