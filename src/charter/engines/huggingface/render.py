"""A stage as the files and the command of TRL's scripts."""

import json

import yaml

from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import Handover
from charter.engines.huggingface.configuration import ACCELERATE_FILE, DEEPSPEED_FILE, Configuration
from charter.engines.huggingface.parallelism import launch, map_parallelism
from charter.engines.huggingface.reinforcement import map_reinforcement
from charter.engines.huggingface.resume import resume_of
from charter.engines.huggingface.supervised import map_supervised
from charter.engines.huggingface.trainer import OUTPUT
from charter.spec.stage import DpoStage, PpoStage, PreferenceModelStage, PretrainStage, SftStage

CACHE = "datasets"
"""Below the work directory: what the library `datasets` makes of the data file."""


def render_trl(handover: Handover) -> RenderedRun:
    """The stage as TRL's configuration; a `SpecError` holds everything that it cannot express."""
    configuration = Configuration(handover)
    match handover.stage:
        case PpoStage() as stage:
            map_reinforcement(configuration, stage)
        case PretrainStage() | SftStage() | PreferenceModelStage() | DpoStage() as stage:
            map_supervised(configuration, stage)
        case stage:
            raise AssertionError(f"TRL has no trainer for {stage.kind}")
    map_parallelism(configuration)
    return RenderedRun(
        mapping=configuration.mapper.finish(),
        files=_files(configuration),
        command=launch(configuration),
        resume=resume_of(configuration),
        environment={"HF_DATASETS_CACHE": f"{handover.paths.work}/{CACHE}", "TOKENIZERS_PARALLELISM": "false"},
        notes=_notes(configuration),
    )


def _files(configuration: Configuration) -> dict[str, str]:
    files = {configuration.trainer_file: _yaml(configuration.trainer)}
    if configuration.accelerate:
        files[ACCELERATE_FILE] = _yaml(configuration.accelerate)
    if configuration.backend == "deepspeed":
        files[DEEPSPEED_FILE] = json.dumps(configuration.deepspeed, indent=2) + "\n"
    return files


def _yaml(settings: dict[str, object]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=120)


def _notes(configuration: Configuration) -> tuple[str, ...]:
    notes = [
        "TRL's scripts ignore keys that they do not know; the files were checked by TRL's parser, hand edits are not.",
        f"Checkpoints are {OUTPUT}/checkpoint-N; the final weights lie in {OUTPUT}.",
    ]
    if configuration.backend == "process":
        notes.append("One process sees one accelerator: with several in the machine set CUDA_VISIBLE_DEVICES.")
    if configuration.trainer.get("use_peft"):
        notes.append(f"{OUTPUT} holds the adapter alone: `charter run` merges it, after an export you do.")
    if configuration.script == "reward":
        notes.append("The head is drawn at random from the seed; Charter's own engine starts from zeros.")
    return tuple(notes)
