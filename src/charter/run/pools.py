"""Server pools of a stage: which models Charter starts servers for, from where, and how many."""

from pathlib import Path

from charter.artifacts.job import JobInput, served_name
from charter.launch.machine import CPU, asked_accelerators, stage_threads
from charter.launch.servers import PoolSpec
from charter.run.graph import PlannedStage, serving_of
from charter.spec.execution import shares_accelerators
from charter.spec.project import Project


def stage_pools(project: Project, stage: PlannedStage) -> tuple[PoolSpec, ...]:
    """Return the servers that are started beside a stage, one entry for each model that it asks."""
    inputs = {item.name: item for items in stage.inputs.values() for item in items}
    pools = []
    for name, serving in serving_of(stage, project).items():
        if (pool := serving.pool) is None:
            continue
        pools.append(
            PoolSpec(
                model=name,
                served_name=served_name(inputs[name], serving),
                path=_weights(inputs[name]),
                engine=pool.engine,
                replicas=pool.replicas,
                tensor=pool.tensor,
                max_num_seqs=pool.max_num_seqs,
                max_tokens=pool.max_tokens,
                memory_share=pool.memory_share,
                first_slot=0 if shares_accelerators(stage.spec) else 1,
                threads=max(1, stage_threads(project, stage.spec) // pool.replicas),
            )
        )
    return tuple(pools)


def accelerators_of_node(project: Project, stage: PlannedStage) -> int:
    """Return the accelerators of a node that the servers of a stage share; 0 on processors."""
    kind, count = asked_accelerators(project, stage.spec)
    return 0 if kind in ("", CPU) else count


def _weights(item: JobInput) -> str:
    """The directory of a model, or its public name where an engine fetches it by that."""
    named = item.model.model if item.model is not None else None
    if named is not None and (item.path is None or not Path(item.path).exists()):
        return named
    return str(item.location())
