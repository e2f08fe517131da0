"""From a plan's layout to what a stage is started with: the layout that was planned is the one that runs."""

from collections.abc import Mapping

from charter.launch.hosted_engine import HOSTED_DEGREES
from charter.launch.machine import LAYOUT_DEFAULTS, asked_layout
from charter.plan.hardware.place import LOCAL
from charter.plan.plan import Plan
from charter.spec.layout import Layout
from charter.spec.project import Project
from charter.spec.stage import Stage, is_hosted
from charter.spec.stage_kinds import TRAINS


def frozen_layout(layout: Layout, stage: Stage) -> dict[str, str | int]:
    """A planned layout by the names that a stage's job freezes, without what is as by default.

    The planner counts the sequences of a micro-batch, the engine rows. Sequence parallelism is not run: it changes
    where numbers lie, not which.

    >>> from charter.spec.layout import ZeroStage
    >>> from charter.spec.stage import SftStage
    >>> frozen_layout(Layout(data=4, zero=ZeroStage.PARAMETERS, micro_batch=8), SftStage(init="b", data=("d",)))
    {'world_size': 4, 'zero': 3, 'micro_batch': 8}
    """
    offload = "all" if layout.offload_parameters else "optimizer" if layout.offload_optimizer else "none"
    found: dict[str, str | int] = {
        "world_size": layout.num_accelerators,
        "zero": int(layout.zero),
        "replicas": layout.replicas,
        "tensor": layout.tensor,
        "micro_batch": max(1, layout.micro_batch // stage.SEQUENCES_PER_ROW),
        "recompute": layout.recompute.value,
        "offload": offload,
    }
    own = {name: int(getattr(layout, name)) for name in HOSTED_DEGREES} if is_hosted(stage) else {}
    return {
        **{name: value for name, value in found.items() if value != LAYOUT_DEFAULTS[name]},
        **{name: value for name, value in own.items() if value != HOSTED_DEGREES[name]},
    }


def planned_layouts(plan: Plan, project: Project) -> Mapping[str, Mapping[str, str | int]]:
    """What the plan decides of the layouts of stages on this machine's accelerators, by stage; the file comes first.

    On processors a plan depends on measured speeds and the result on the layout, so that only the file decides there.
    """
    found = {}
    for name, stage in project.pipeline.items():
        planned = plan.stage(name)
        if planned is None or stage.kind not in TRAINS or planned.option.place.is_cpu:
            continue
        layout, asked = planned.option.layout, asked_layout(project, stage)
        if planned.option.place.infra == LOCAL and layout.num_accelerators == asked["world_size"]:
            found[name] = {key: value for key, value in frozen_layout(layout, stage).items() if key not in asked}
    return found
