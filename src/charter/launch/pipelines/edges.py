"""Which stage waits for which, where somebody else starts them."""

from charter.spec.graph import execution_order, stage_inputs
from charter.spec.project import Project


def edges(project: Project) -> dict[str, tuple[str, ...]]:
    """For every stage, in the order they run, the stages that must be done before it starts.

    These are the stages that it reads. Where the file lets only one stage run at a time (`max_parallel_stages: 1`, the
    default) it also waits for the one before it: two machines that run one project at a time would otherwise both
    write its ledger.
    """
    order = execution_order(project)
    one_at_a_time = project.resources.max_parallel_stages == 1
    before = dict(zip(order[1:], order, strict=False)) if one_at_a_time else {}
    waits = {name: (*stage_inputs(project, name), before.get(name, "")) for name in order}
    return {name: tuple(dict.fromkeys(filter(None, names))) for name, names in waits.items()}
