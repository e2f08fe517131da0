"""PyTorch's FSDP2 with DTensor, a library around which any loop can be written: planned only, nothing is rendered."""

from charter.engines.common.capabilities import AMD, NONE, NVIDIA, PARAMETERS, Capabilities
from charter.engines.common.engine import TrainingEngine
from charter.physics.precision import FSDP_MIXED

CAPABILITIES = Capabilities(
    name="fsdp",
    does="FSDP2 (ZeRO-3), HSDP, DDP, tensor and context parallelism, offload",
    stack="fsdp",
    memory="fsdp-or-copies",
    precision=FSDP_MIXED,
    zero=(NONE, PARAMETERS),
    tensor=True,
    sequence_parallel=True,
    context=True,
    hybrid=True,
    offload_optimizer=(PARAMETERS,),
    offload_parameters=(PARAMETERS,),
    makers=(NVIDIA, AMD),
    untried=(AMD,),
    without_fp8="it gathers weights in 16 bits and multiplies them so",
)
FSDP = TrainingEngine(capabilities=CAPABILITIES, title="FSDP2")
