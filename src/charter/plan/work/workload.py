"""The work of every kind of stage, derived from its fields and from the size of its data."""

from charter.errors import SpecError
from charter.plan.work import answering_work, training_work
from charter.plan.work.corpus import Library
from charter.plan.work.phase import Workload
from charter.plan.work.roles import Models
from charter.spec.stage import (
    CritiqueStage,
    DpoStage,
    EvalStage,
    GenerateStage,
    JudgeStage,
    LabelStage,
    PpoStage,
    PreferenceModelStage,
    PrepareStage,
    PretrainStage,
    SftStage,
    Stage,
)


def workload(stage: Stage, models: Models, library: Library) -> Workload:
    """Roles, phases and counters of one stage."""
    match stage:
        case PretrainStage() | SftStage():
            return training_work.language_model(stage, models, library)
        case PreferenceModelStage():
            return training_work.preference_model(stage, models, library)
        case JudgeStage():
            return training_work.judge(stage, models, library)
        case DpoStage():
            return training_work.dpo(stage, models, library)
        case PpoStage():
            return training_work.ppo(stage, models, library)
        case CritiqueStage():
            return answering_work.critique(stage, models, library)
        case LabelStage():
            return answering_work.label(stage, models, library)
        case GenerateStage():
            return answering_work.generate(stage, models, library)
        case EvalStage():
            return answering_work.evaluate(stage, models, library)
        case PrepareStage():
            return answering_work.prepare(stage, models, library)
    raise SpecError(f"the planner does not know stages of kind {stage.kind!r}")
