"""What a stage may run on, as SkyPilot's `resources`: one candidate, or several under `any_of`. Pure."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from charter.catalog.accelerators import CPU
from charter.catalog.price_book import PriceBook
from charter.errors import UsageError
from charter.launch.skypilot.names import sky_accelerator, sky_cloud
from charter.launch.tags import google_labels, kubernetes_labels, tags_of
from charter.spec.project import Project
from charter.spec.stage import Stage
from charter.units import GIB

RECOVERY = "EAGER_NEXT_REGION"
"""After a preemption look in the next region at once; SkyPilot's default, written out."""
INTERRUPTED_EXIT = 6
"""`charter run` was stopped at a safe point: to be started again."""
RESTARTS_ON_ERRORS = 0
"""Charter restarts a stage itself, and knows when that is of no use."""
MARKETS: Mapping[object, tuple[bool, ...]] = {False: (False,), True: (True,), "auto": (True, False)}


def sky_resources(project: Project, name: str) -> dict[str, Any]:
    """The candidates of a stage, in the order of the file; what they share stands once."""
    stage = project.pipeline[name]
    candidates = list(_candidates(project, stage))
    shared: dict[str, Any] = {**_host(project, stage), **_recovery(), "labels": _labels(project, name)}
    if len(candidates) == 1:
        return {**candidates[0], **shared}
    return {**shared, "any_of": candidates}


def check_nodes(project: Project, name: str) -> None:
    """Refuse a stage of several nodes: they would need a disk that all of them see."""
    stage = project.pipeline[name]
    own = stage.resources.num_nodes if stage.resources else None
    nodes = own or project.resources.num_nodes or 1
    if nodes > 1:
        raise UsageError(
            f"stage {name} asks for {nodes} nodes; on SkyPilot a stage runs on one: machines that it rents share "
            "no disk, which the processes of a stage need\n"
            "  set num_nodes: 1, or run on slurm, ray or kubernetes, which give the nodes one file system"
        )


def _candidates(project: Project, stage: Stage) -> Iterable[dict[str, Any]]:
    asked = project.resources
    own = stage.resources.accelerators if stage.resources else None
    own_spot = stage.resources.use_spot if stage.resources else None
    spot = asked.use_spot if own_spot is None else own_spot
    seen = set()
    for infra, kinds in _places(project):
        named = (own,) if own else kinds or asked.accelerators or (CPU,)
        for kind, use_spot in product(named, MARKETS[spot]):
            found = {**infra, **_accelerator(kind), "use_spot": use_spot}
            if (key := tuple(found.items())) not in seen:
                seen.add(key)
                yield found


def _places(project: Project) -> Iterable[tuple[dict[str, str], tuple[str, ...]]]:
    """Where the file lets the project run, and with which accelerators there; an empty place is anywhere."""
    asked = project.resources
    places = [place for place in asked.any_of if not asked.clouds or place.infra in asked.clouds]
    clouds = asked.clouds or ((asked.infra,) if asked.infra and asked.infra != "skypilot" else ())
    if not places and not clouds:
        yield {}, ()
    for place in places:
        for region in (place.region,) if place.region else _regions(project, place.infra):
            yield _infra(place.infra, region), place.accelerators
    for cloud in clouds if not places else ():
        for region in _regions(project, cloud):
            yield _infra(cloud, region), ()


def _regions(project: Project, cloud: str) -> tuple[str | None, ...]:
    """Those of the file that the price book knows of a cloud; any where there are none."""
    known = {offer.region for offer in PriceBook.bundled().offers(cloud=cloud)}
    return tuple(region for region in project.resources.regions if region in known) or (None,)


def _infra(cloud: str, region: str | None) -> dict[str, str]:
    return {"infra": f"{sky_cloud(cloud)}/{region}" if region else sky_cloud(cloud)}


def _accelerator(asked: str) -> dict[str, str]:
    name, _, count = asked.partition(":")
    return {} if name == CPU else {"accelerators": f"{sky_accelerator(name)}:{count or 1}"}


def _host(project: Project, stage: Stage) -> dict[str, Any]:
    own = stage.resources.cpus if stage.resources else None
    cpus, memory, cost = own or project.resources.cpus, project.resources.memory, project.resources.max_hourly_cost
    return {
        **({"cpus": f"{cpus}+"} if cpus else {}),
        **({"memory": f"{memory / GIB:g}+"} if memory else {}),
        **({"max_hourly_cost": cost} if cost else {}),
    }


def _recovery() -> dict[str, Any]:
    return {
        "job_recovery": {
            "strategy": RECOVERY,
            "max_restarts_on_errors": RESTARTS_ON_ERRORS,
            "recover_on_exit_codes": [INTERRUPTED_EXIT],
        }
    }


def _labels(project: Project, name: str) -> dict[str, str]:
    """Tags in the spelling that all clouds take, since the cloud is not known yet."""
    return google_labels(kubernetes_labels(tags_of(project, run=project.name, stage=name), prefix=""))
