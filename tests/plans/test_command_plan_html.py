"""`charter plan --html`: the page is written beside the table, with the dates that were asked for."""

from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import UsageError

FILE = """
name: demo
models:
  base: {model: meta-llama/Llama-3.1-8B}
data:
  chat: {path: chat.jsonl, rows: 40_000, mean_tokens: 300}
pipeline:
  helpful: {kind: sft, init: base, data: [chat], global_batch: 128, seq_len: 2048}
resources: {infra: aws, accelerators: [H100:8], max_nodes: 2}
"""


def test_the_page_is_written_with_the_start_that_was_given(tmp_path):
    (tmp_path / "charter.yaml").write_text(FILE)
    page = tmp_path / "plan.html"
    done = CliRunner().invoke(app, ["plan", str(tmp_path), "--html", str(page), "--start", "2027-03-01"])
    assert done.exit_code == 0, done.output
    assert "helpful" in done.output
    html = page.read_text()
    assert html.startswith("<!doctype html>")
    assert "started 01 Mar 00:00" in html
    assert '"start":1803859200.0' in html


def test_a_page_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "charter.yaml").write_text(FILE)
    done = CliRunner().invoke(app, ["plan", str(tmp_path), "--html", str(tmp_path / "no" / "plan.html")])
    assert isinstance(done.exception, UsageError)
    assert "give a file in a directory that exists" in str(done.exception)
