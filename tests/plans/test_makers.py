"""Every maker of accelerators has an engine whose stage is planned and written as files, or is refused by name."""

import pytest

from charter.engines.project import load_project
from charter.errors import InfeasibleError, SpecError
from charter.plan.project_plan import plan_project
from charter.report.handover import export_handover

PROJECT = """
name: makers
models: {{base: meta-llama/Llama-3.1-8B}}
data: {{chats: {{path: chats.jsonl, rows: 20_000, mean_tokens: 700}}}}
pipeline:
  sft: {{kind: sft, engine: {engine}, init: base, data: chats, epochs: 1, global_batch: 64, seq_len: 2048}}
resources: {{any_of: [{{infra: on_prem, accelerators: ['{accelerator}'], price: 4.0}}], num_nodes: 4}}
"""


def project(root, engine, accelerator):
    (root / "charter.yaml").write_text(PROJECT.format(engine=engine, accelerator=accelerator))
    return load_project(root)


@pytest.mark.parametrize(
    ("accelerator", "engine", "start"),
    [("H100:8", "trl", "slurm.sh"), ("MI300X:8", "accelerate", "slurm.sh"), ("TPU-v5p:4", "maxtext", "on_xpk.sh")],
)
def test_maker_has_an_engine_that_plans_and_renders(tmp_path, accelerator, engine, start):
    export = export_handover(project(tmp_path, engine, accelerator), tmp_path, "sft", engine)
    assert {"run.sh", "mapping.md", "resources.yaml", start} <= set(export.files)
    layout = export.planned.option.layout
    assert layout.data * layout.micro_batch * layout.accumulation == 64


@pytest.mark.parametrize("accelerator", ["Trainium2:16", "Gaudi3:8", "Ascend-910B:8"])
def test_makers_without_an_engine_are_refused_by_name(tmp_path, accelerator):
    with pytest.raises(InfeasibleError, match=f"{accelerator.split(':')[0]}.* nor does any other engine"):
        plan_project(project(tmp_path, "native", accelerator), tmp_path)


def test_rows_are_filled_up_to_seq_len_on_tpus(tmp_path):
    """MaxText computes the whole row, however short the conversation in it is."""
    files = project(tmp_path, "maxtext", "TPU-v5p:4")
    long = plan_project(files, tmp_path).stages[0].option
    (tmp_path / "charter.yaml").write_text(
        (tmp_path / "charter.yaml").read_text().replace("mean_tokens: 700", "mean_tokens: 350")
    )
    short = plan_project(load_project(tmp_path), tmp_path).stages[0].option
    assert short.seconds.p50 == pytest.approx(long.seconds.p50, rel=0.01)


def test_gpu_is_refused_to_maxtext_by_name(tmp_path):
    with pytest.raises(InfeasibleError, match=r"maxtext does not run on H100.*engine: native"):
        plan_project(project(tmp_path, "maxtext", "H100:8"), tmp_path)
    with pytest.raises((SpecError, InfeasibleError)):
        export_handover(project(tmp_path, "maxtext", "H100:8"), tmp_path, "sft", "maxtext")
