"""The files of one run in the making, and what becomes of each field on the way."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from charter.engines.common.mapping import FieldMapper, How
from charter.engines.common.request import Handover
from charter.errors import Problem
from charter.spec.layout import ZeroStage
from charter.spec.stage import DpoStage, PpoStage, PreferenceModelStage

ACCELERATE_FILE, DEEPSPEED_FILE = "accelerate.yaml", "deepspeed.json"
Backend = Literal["process", "torchrun", "ddp", "fsdp", "deepspeed"]
"""One process; several on processors; several on accelerators: copies (DDP), FSDP2, or DeepSpeed's ZeRO."""


@dataclass
class Configuration:
    """The settings of TRL's trainer, of Accelerate and of DeepSpeed, and the mapping into them."""

    handover: Handover
    trainer: dict[str, object] = field(default_factory=dict)
    accelerate: dict[str, object] = field(default_factory=dict)
    deepspeed: dict[str, object] = field(default_factory=dict)
    mapper: FieldMapper = field(init=False)

    def __post_init__(self) -> None:
        self.mapper = FieldMapper(self.handover)

    @property
    def script(self) -> str:
        """Return the script of `trl.scripts` that trains the stage."""
        match self.handover.stage:
            case PreferenceModelStage():
                return "reward"
            case DpoStage():
                return "dpo"
            case PpoStage(estimator=estimator):
                return estimator
            case _:
                return "sft"

    @property
    def trainer_file(self) -> str:
        """The file of TRL's script."""
        return f"{self.script}.yaml"

    @property
    def backend(self) -> Backend:
        """Return the backend that spreads the model over the processes."""
        layout, engine = self.handover.layout, self.handover.engine
        if engine == "deepspeed":
            return "deepspeed"
        if layout.zero:
            only_optimizer = layout.offload_optimizer and not layout.offload_parameters
            needs_deepspeed = layout.zero is not ZeroStage.PARAMETERS or only_optimizer
            return "deepspeed" if needs_deepspeed and engine == "trl" else "fsdp"
        if self.handover.num_accelerators == 1:
            return "process"
        return "torchrun" if self.handover.is_cpu else "ddp"

    def put(self, settings: Mapping[str, object]) -> None:
        """Settings of the trainer that no field decides, or several do."""
        self.trainer.update(settings)

    def write(self, name: str, settings: Mapping[str, object], *, how: How = "as_is", note: str = "") -> None:
        """Settings of the trainer that one field decides."""
        self.put(settings)
        self.mapper.to(name, *(self.place(key) for key in settings), how=how, note=note)

    def place(self, key: str) -> str:
        """A setting of the trainer as the mapping names it."""
        return f"{self.trainer_file}: {key}"

    def refuse_engine(self, message: str, hint: str) -> None:
        """The engine cannot run the stage at all, whatever its fields say."""
        path = f"pipeline.{self.handover.name}.engine"
        self.mapper.problems.append(Problem(path=path, message=message, hint=hint))
