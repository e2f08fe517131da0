"""The models of a stage as directories that an engine reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts.job import Job
from charter.hosted.classifier import is_preference_model, write_classifier
from charter.launch.handing_over import architecture_of, model_roles
from charter.models.language_model import check_model_directory
from charter.models.tokenizer import load_tokenizer
from charter.spec.architecture import Architecture
from charter.train.models import starting_model

MODELS = "models"


@dataclass(frozen=True, kw_only=True)
class StageModels:
    """Directories of the models, by role, and the tokenizer of the one that is trained."""

    directories: Mapping[str, Path]
    architectures: Mapping[str, Architecture]
    tokenizer: Any


def stage_models(job: Job, work: Path) -> StageModels:
    """The models of a job; one that is only described is made with fresh weights, as the native engine makes it."""
    directories, architectures = {}, {}
    for role, item in model_roles(job).items():
        if item.model is not None and item.model.architecture is not None:
            directories[role] = work / MODELS / role
            starting_model(job, role=role).save(directories[role])
        else:
            directories[role] = item.location()
            check_model_directory(directories[role])
            if is_preference_model(directories[role]):
                write_classifier(directories[role], work / MODELS / role)
                directories[role] = work / MODELS / role
        architectures[role] = architecture_of(item, directories[role])
    trained = directories.get("policy") or directories["init"]
    return StageModels(directories=directories, architectures=architectures, tokenizer=load_tokenizer(trained))
