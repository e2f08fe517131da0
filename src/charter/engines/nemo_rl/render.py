"""A stage for NeMo RL: a complete YAML file, the example script that reads it, and what a resume of it is worth."""

from charter.engines.common.mapping import FieldMapper
from charter.engines.common.ray_script import RAY_SCRIPT, ray_script
from charter.engines.common.rendered import RenderedRun, Resume
from charter.engines.common.request import Handover
from charter.engines.common.sheet import Sheet
from charter.engines.nemo_rl.capabilities import COMMIT, VERSION
from charter.engines.nemo_rl.grpo import grpo_sheet
from charter.engines.nemo_rl.supervised import dpo_sheet, reward_sheet, sft_sheet
from charter.spec.stage import DpoStage, PpoStage, PreferenceModelStage, SftStage

DIRECTORY = "${NEMO_RL_DIR}"
"""Its checkout; the package on PyPI holds nothing."""
SOURCE = f"NeMo RL {VERSION} ({COMMIT[:7]}): nemo_rl/utils/checkpoint.py, nemo_rl/algorithms"
SUPERVISED = Resume(
    guarantee="same_data_order",
    reason=(
        "weights, optimizer, schedule and the place in the data come back; random states do not (it saves none), "
        "which matters only to what draws while it trains"
    ),
    source=SOURCE,
)
GRPO = Resume(
    guarantee="same_data_order",
    reason=(
        "weights, optimizer, schedule and the place in the prompts come back; random states do not, and vLLM draws "
        "anew, so the answers of a repeated rollout differ"
    ),
    source=SOURCE,
)
NOTES = (
    "a checkpoint is whole once tmp_step_N is called step_N; a start takes the highest number in its directory",
    "NEMO_RL_DIR is the checkout, at the commit of its version; it runs its scripts with uv, or in an environment",
)


def render(handover: Handover) -> RenderedRun:
    """The stage as NeMo RL's configuration; a `SpecError` holds every field that it cannot express."""
    mapper = FieldMapper(handover)
    sheet, resume = _sheet(mapper), GRPO if isinstance(handover.stage, PpoStage) else SUPERVISED
    rows = mapper.finish()
    name = sheet.file.removesuffix(".yaml")
    files = {sheet.file: sheet.text()}
    config = f"{handover.paths.work}/{sheet.file}"
    command: tuple[str, ...] = ("python", f"{DIRECTORY}/examples/run_{name}.py", "--config", config)
    if handover.num_nodes > 1:
        files[RAY_SCRIPT] = ray_script(handover)
        command = ("bash", RAY_SCRIPT, *command)
    return RenderedRun(files=files, command=command, mapping=rows, resume=resume, notes=NOTES)


def _sheet(mapper: FieldMapper) -> Sheet:
    stage = mapper.handover.stage
    match stage:
        case SftStage():
            return sft_sheet(mapper, stage)
        case PreferenceModelStage():
            return reward_sheet(mapper, stage)
        case DpoStage():
            return dpo_sheet(mapper, stage)
    assert isinstance(stage, PpoStage)
    return grpo_sheet(mapper, stage)
