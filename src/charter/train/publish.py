"""The end of every training stage: gather the weights, publish them, part from the other processes."""

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from charter.artifacts.heartbeat import PUBLISH
from charter.models.parallel import Parallel
from charter.models.ranks import leave
from charter.train.setup import Setup


def publish_model(
    setup: Setup, parallel: Parallel, save: Callable[[Path, Mapping[str, Tensor]], None], *, target_step: int
) -> None:
    """Publish the outputs from rank 0: `save` writes a model directory from whole tensors with plain names."""
    setup.stage.beat(PUBLISH)
    weights = parallel.full_state_dict()
    if setup.ranks.is_first:
        setup.stage.publish_outputs(
            lambda directory: save(directory / "model", weights), step=target_step, target_step=target_step
        )
    setup.ranks.wait()
    leave()
