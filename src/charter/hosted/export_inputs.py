"""The data and models of a stage for an engine that somebody else starts: `charter artifacts export --data`.

Run in a process of its own, since it needs torch: `python -m charter.hosted.export_inputs --stage-dir D`, where D holds
the job and nothing else; what it makes lies in `D/exported`.
"""

import torch

from charter.artifacts import durable
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.engines.common.files import link_tree
from charter.hosted.data_files import DATA, write_data
from charter.hosted.weights import stage_models
from charter.models.engine_layout import StageLayout
from charter.models.ranks import Ranks
from charter.train.meter import Meter
from charter.train.setup import Setup

EXPORTED, MODELS, FACTS = "exported", "inputs", "inputs.json"


def run(stage: StageDir) -> None:
    """Write `data/` and `inputs/ROLE` as the configuration names them, and how many rows and steps they are."""
    meter = Meter(stage.path, device=torch.device("cpu"))
    setup = Setup(stage=stage, ranks=Ranks(), layout=StageLayout(), meter=meter)
    models = stage_models(stage.job, stage.path)
    exported = stage.path / EXPORTED
    durable.make_dir(exported)
    data = write_data(stage, setup, models.tokenizer, exported / DATA)
    for role, directory in models.directories.items():
        link_tree(directory, exported / MODELS / role)
    notes = [*data.notes, *setup.skipped.lines()]
    durable.write_json(stage.path / FACTS, {"target_steps": data.target_steps, "rows": dict(data.rows), "notes": notes})
    raise SystemExit(0)


if __name__ == "__main__":
    stage_main(run)
