"""Each engine as a hosted stage sees it."""

from charter.artifacts.job import Job
from charter.engines.common.adapter import Adapter
from charter.engines.installed import interpreter_of
from charter.errors import UsageError
from charter.spec.stage import PpoStage


def adapter_of(job: Job) -> Adapter:
    """The adapter of the engine that computes a job; only that one is imported."""
    name = job.spec.engine
    python = interpreter_of(job.engines, name)
    match name:
        case "trl" | "accelerate" | "deepspeed":
            from charter.engines.huggingface.adapter import HuggingFaceAdapter

            return HuggingFaceAdapter(updates=_updates(job), saves_on_sigterm=not isinstance(job.spec, PpoStage))
        case "verl":
            from charter.engines.verl.adapter import VerlAdapter

            return VerlAdapter(python=python)
        case "nemo_rl":
            from charter.engines.nemo_rl.adapter import NemoRlAdapter

            return NemoRlAdapter()
        case "openrlhf":
            from charter.engines.openrlhf.adapter import OpenRlhfAdapter

            return OpenRlhfAdapter(python=python)
        case "megatron":
            from charter.engines.megatron.adapter import MegatronAdapter

            return MegatronAdapter(python=python)
    raise UsageError(
        f"no adapter knows how the engine {name!r} is followed; `charter artifacts export` renders its files"
    )


def _updates(job: Job) -> int:
    """Optimizer steps of the Trainer in one step of the stage: a rollout has several."""
    spec = job.spec
    if not isinstance(spec, PpoStage):
        return 1
    return max(1, spec.ppo_epochs * spec.rollout_batch // spec.minibatch)
