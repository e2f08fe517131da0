"""PyTorch's FSDP2 with loops of one's own: planned only."""

from charter.engines.common.engine import TrainingEngine
from charter.engines.fsdp.capabilities import CAPABILITIES

FSDP = TrainingEngine(capabilities=CAPABILITIES, title="FSDP2")
