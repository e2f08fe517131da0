"""Charter's own engine: what it can do; its code is the package `train`."""

from charter.engines.common.engine import TrainingEngine
from charter.engines.native.capabilities import CAPABILITIES

NATIVE = TrainingEngine(capabilities=CAPABILITIES, title="Charter", has_processors=True)
