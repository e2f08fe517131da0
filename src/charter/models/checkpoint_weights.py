"""The policy that a checkpoint of training holds, read without what trained it.

A checkpoint keeps its tensors by parameter name, whatever the layout was; the stage's published model has the same
names, with config and tokenizer. `.metadata` of torch.distributed.checkpoint is a pickle: it is read only after every
file of the checkpoint has its recorded hash.
"""

import warnings
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from charter.artifacts.checkpoints import damage
from charter.errors import DataError
from charter.models.language_model import LanguageModel, load_language_model

POLICY = "modules/policy/"
"""Before the names of the policy's parameters in a checkpoint."""


def policy_of_checkpoint(published: Path, checkpoint: Path) -> LanguageModel:
    """The model of directory `published` with the policy's weights of a checkpoint of the same stage."""
    if (wrong := damage(checkpoint)) is not None:
        raise DataError(f"{checkpoint} is damaged: {wrong}\n  remove it, or take it from a replica")
    reader = FileSystemReader(checkpoint)
    saved = {
        name.removeprefix(POLICY)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if name.startswith(POLICY) and isinstance(entry, TensorStorageMetadata)
    }
    model = load_language_model(published)
    here = dict(model.model.named_parameters())
    if lora := sorted(name for name in saved if ".lora_" in name):
        raise DataError(
            f"{checkpoint} holds an adapter ({lora[0]}), which is merged only when the stage ends; "
            "checkpoints of stages that train all weights can be read"
        )
    if saved != set(here):
        raise DataError(
            f"{checkpoint} does not hold the model of {published}: {', '.join(sorted(saved ^ set(here))[:3])}"
        )
    # One process without a process group is what is meant here, so torch need not warn of it.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    with torch.no_grad():
        tensors = {f"{POLICY}{name}": parameter.detach() for name, parameter in here.items()}
        try:
            load(tensors, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            causes = {type(failure[0]).__name__ for failure in error.failures.values()}
            raise DataError(f"{checkpoint}: its tensors cannot be read: {', '.join(sorted(causes))}") from error
    return model
