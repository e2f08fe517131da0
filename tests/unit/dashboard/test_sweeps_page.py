"""The page of a project's sweeps: the table of `charter report --sweep`, and why there is none."""

import html
import json
import re

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.dashboard.app import export_pages
from charter.dashboard.reading import key_of
from charter.dashboard.site import Settings
from charter.dashboard.work.child import sweeps
from charter.engines.project import load_project
from charter.run.sweep import pipelines, sweep_points

SWEEPS = """\
sweeps:
  "<b>kl":
    over: {pipeline.ppo.kl_target: [4.0, 6.0]}
    seeds: 3
    metric: {stage: judged, figure: win_rate}
  bare: {over: {pipeline.ppo.kl_target: [4.0, 6.0]}}
"""
VALUES = (0.10, 0.50, 0.90, 0.20, 0.61, None)
"""By point; the last one has not been judged."""


@pytest.fixture
def swept(case):
    """The project with two sweeps, of which five points of the first have results."""
    path = case.root / "charter.yaml"
    path.write_text(path.read_text() + SWEEPS)
    points = sweep_points(case.root, load_project(case.root), "<b>kl")
    for (_, pipeline), value in zip(pipelines(points, case.root), VALUES, strict=True):
        if value is not None:
            outputs = pipeline.stages["judged"].directory / "outputs"
            outputs.mkdir(parents=True, exist_ok=True)
            figures = [{"key": "win_rate", "value": value, "unit": "share"}]
            (outputs / "results.json").write_text(json.dumps({"figures": figures}))
    return case


def test_the_page_has_the_table_of_the_report(client, swept, at):
    assert f'data-piece="{at("sweeps/piece")}"' in client.get(at("sweeps")).text
    page = client.get(at("sweeps"), params={"wait": "1"}).text
    answer = client.get(at("sweeps/piece")).json()
    assert (answer["state"], answer["html"] in page, "<b>" in page) == ("ready", True, False)
    shown = html.unescape(re.sub(r"<[^>]+>", "\n", answer["html"]))
    report = CliRunner().invoke(app, ["report", "--sweep", "<b>kl", "-C", str(swept.root), "--json"])
    first, second = json.loads(report.output)["settings"]
    assert (first["name"], second["name"], second["pairs"]) == ("kl_target 4.0", "kl_target 6.0", 2)
    lines = [line for line in shown.splitlines() if line]
    assert lines[lines.index("kl_target 4.0") :][:3] == ["kl_target 4.0", "3", f"{100 * first['mean']:.1f}"]
    ends = [f"{100 * second[f'difference_{end}']:.1f}" for end in ("low", "high")]
    own = lines[lines.index("kl_target 6.0") :][:8]
    assert own[4:] == [f"{100 * second['difference']:.1f}", " to ".join(ends), f"{second['p_value']:.3f}", "20.0, 61.0"]
    assert "judged is not finished" in shown
    assert "1 comparison, paired by seed" in shown
    assert "sweep 'bare' says no metric" in shown


def test_no_sweep_no_link_and_no_result_no_claim(client, case, at):
    assert at("sweeps") not in client.get(at()).text
    assert "No sweep" in client.get(at("sweeps")).text
    (case.root / "charter.yaml").write_text((case.root / "charter.yaml").read_text() + SWEEPS)
    tables = sweeps({"root": str(case.root)}, print)["sweeps"]
    assert [(item["name"], "table" in item) for item in tables] == [("<b>kl", True), ("bare", False)]
    assert tables[0]["table"]["words"].startswith("No setting can be compared")


def test_an_export_has_the_page_of_a_project_with_sweeps(swept, tmp_path):
    out, key = tmp_path / "out", key_of(swept.root.resolve())
    export_pages(Settings(roots=(swept.root,), token="x" * 32), out)
    assert f'href="{key}.sweeps.html"' in (out / f"{key}.html").read_text()
    text = (out / f"{key}.sweeps.html").read_text()
    assert "kl_target 6.0" in text
    assert str(swept.root) not in text
