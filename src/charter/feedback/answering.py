"""Opens whoever answers the questions of a stage: each role's model in this process, or behind its endpoint."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from charter.artifacts.group import rank_of_process, world_size
from charter.artifacts.job import JobInput, served_name
from charter.artifacts.job_files import KEY_FILE, SERVERS, await_servers
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError, StageError
from charter.feedback.asking import Ask, Reply
from charter.feedback.records import Answerer
from charter.feedback.served_models import ServedModel
from charter.inference.endpoint.call import CallReply, CallRequest
from charter.spec.project import MOST_BATCHED, Serving, batches_under_way
from charter.spec.stage_base import Sampling

if TYPE_CHECKING:
    from charter.feedback.local_models import LocalModels
    from charter.inference.endpoint.identity import Canaries

CALLS_FILE, API_BATCHES = "calls.sqlite", "api_batches"
MODELS_DIR = "models"
JUDGE_ROLES = ("judge", "also_judges", "reward")
"""Asked questions that are shortened to fit, so that the stage's lengths of prompts do not concern them."""


@contextmanager
def open_answerer(stage: StageDir, roles: Sequence[str]) -> Iterator[Answerer]:
    """The answerer of some roles of a stage.

    A role with one input is known by its name, one with several as `role/input`. A model that several roles name is
    loaded, or called, once.
    """
    named = _named_inputs(stage, roles)
    serving = {role: stage.job.serving[item.name] for role, item in named.items() if item.name in stage.job.serving}
    with _suspects_set_aside(stage), ExitStack() as stack:
        local = _local_models(stage, {role: item for role, item in named.items() if role not in serving})
        served = _served_models(stage, named, serving, stack)
        spec = stage.job.spec
        size = spec.rollout_batch if isinstance(spec, Sampling) else 1
        yield Answering(local, served, batches_at_once=batches_under_way(tuple(serving.values()), size))


@contextmanager
def _suspects_set_aside(stage: StageDir) -> Iterator[None]:
    """Set aside what a stage may have of another model, when one is noticed: its next start makes that anew."""
    from charter.inference.endpoint.identity import ModelChangedError

    try:
        yield
    except ModelChangedError as error:
        if error.since:
            stage.set_aside_since(error.since)
        raise


def _named_inputs(stage: StageDir, roles: Sequence[str]) -> dict[str, JobInput]:
    named: dict[str, JobInput] = {}
    for role in roles:
        inputs = stage.job.inputs.get(role, ())
        if len(inputs) > 1:
            named |= {f"{role}/{item.name}": item for item in inputs}
        else:
            named[role] = stage.job.only(role)
    return named


def _local_models(stage: StageDir, named: Mapping[str, JobInput]) -> "LocalModels | None":
    if not named:
        return None
    from charter.feedback.local_models import LocalModels, check_context
    from charter.models.language_model import LanguageModel, answering_dtype, load_language_model
    from charter.models.runtime import configure

    device = configure(stage.job.frozen)
    loaded: dict[Path, LanguageModel] = {}
    for role, item in named.items():
        where = item.location()
        if where not in loaded:
            loaded[where] = load_language_model(where, dtype=answering_dtype(device))
            loaded[where].model.to(device).eval()
        if isinstance(stage.job.spec, Sampling) and item.role not in JUDGE_ROLES:
            check_context(loaded[where], stage.job.spec, role=role)
    return LocalModels({role: loaded[item.location()] for role, item in named.items()})


def _served_models(
    stage: StageDir, named: Mapping[str, JobInput], serving: Mapping[str, Serving], stack: ExitStack
) -> dict[str, ServedModel]:
    if not serving:
        return {}
    from charter.inference.endpoint.gate import SpendingGate
    from charter.inference.endpoint.pool import EndpointPool
    from charter.ledger.calls import CallStore

    job = stage.job
    where = job.ledger or stage.path / CALLS_FILE
    calls = stack.enter_context(CallStore.open(where, run=job.run, stage=job.stage, fingerprint=job.fingerprint))
    gate = SpendingGate(
        stage.path,
        spent_micro_usd=calls.totals().sums.most_micro_usd,
        rank=rank_of_process(),
        processes=world_size(),
    )
    models: dict[str, ServedModel] = {}
    for role, settings in serving.items():
        item = named[role]
        if item.name not in models:
            settings = with_addresses(item.name, settings, stage) if settings.pool is not None else settings
            canaries = _canaries(item, settings, stage)
            batches = stage.path / API_BATCHES / f"{item.name}-{rank_of_process()}"
            pool = EndpointPool.open(
                item.name, settings, calls, tell=stage.alive, canaries=canaries, gate=gate, directory=batches
            )
            stack.callback(pool.close)
            name = served_name(item, settings)
            models[item.name] = ServedModel(item.name, name, settings, pool, revision=item.fingerprint)
    return {role: models[named[role].name] for role in serving}


def _canaries(item: JobInput, serving: Serving, stage: StageDir) -> "Canaries | None":
    from charter.inference.endpoint.identity import Canaries

    if not serving.canary_every:
        return None
    return Canaries(
        declared=item.name,
        served=served_name(item, serving),
        revision=item.fingerprint,
        continues=serving.api == "completions",
        is_message=serving.api == "messages",
        gives_log_probabilities=serving.gives_log_probabilities,
        directory=stage.of_run(MODELS_DIR),
        every=MOST_BATCHED if serving.batch else serving.canary_every,
    )


def with_addresses(name: str, serving: Serving, stage: StageDir) -> Serving:
    """Return how a model is served, with the addresses of the servers that were started for this stage.

    Waits until one of them answers. Raises StageError where none comes up, DataError outside of a job that has them.
    """
    assert serving.pool is not None
    directory = os.environ.get(SERVERS)
    if directory is None:
        raise DataError(f"the servers of {name!r} are started by `charter run`, and this process was not")
    servers = await_servers(
        Path(directory), name, serving.pool.replicas, alive=stage.alive, should_stop=stage.should_stop
    )
    if not servers:
        raise StageError(f"the stage was stopped before the servers of {name!r} were there")
    first, *others = (server.url for server in servers)
    concurrency = serving.pool.max_num_seqs or serving.concurrency
    key = f"file:{Path(directory) / KEY_FILE}"
    return replace(serving, endpoint=first, also_endpoints=tuple(others), api_key=key, concurrency=concurrency)


class Answering:
    """Splits questions by role between the models of this process and the endpoints, which answer side by side."""

    def __init__(
        self, local: "LocalModels | None", served: Mapping[str, ServedModel], *, batches_at_once: int = 1
    ) -> None:
        self._local, self._served, self.batches_at_once = local, served, batches_at_once

    def submit(self, asks: Sequence[Ask]) -> "Future[list[Reply]]":
        """The replies in the order of the questions; endpoints are asked first, so that they work meanwhile."""
        here = [index for index, ask in enumerate(asks) if ask.role not in self._served]
        roles = [role for role in self._served if any(ask.role == role for ask in asks)]
        gathering = _Gathering(len(asks), parts=len(roles) + bool(here))
        for role in roles:
            self._send(self._served[role], [i for i, ask in enumerate(asks) if ask.role == role], asks, gathering)
        if here:
            assert self._local is not None, "a role that is neither here nor served"
            gathering.put(dict(zip(here, self._local.submit([asks[index] for index in here]).result(), strict=True)))
        return gathering.done

    def _send(self, model: ServedModel, places: Sequence[int], asks: Sequence[Ask], gathering: "_Gathering") -> None:
        requests: list[list[CallRequest]] = [model.requests(asks[place]) for place in places]

        def read(replies: Sequence[CallReply]) -> dict[int, Reply]:
            remaining = iter(replies)
            return {
                place: model.reply(asks[place], [next(remaining) for _ in sent])
                for place, sent in zip(places, requests, strict=True)
            }

        flat = [request for sent in requests for request in sent]
        if not flat:
            gathering.put(read(()))
            return
        model.pool.submit(flat).add_done_callback(lambda future: gathering.take(future, read))

    def confirm(self) -> None:
        """Look once more at the servers that have answered: before their answers are published.

        Raises ModelChangedError where one has another model than before.
        """
        for model in self._served.values():
            model.pool.confirm()

    def settled_micro_usd(self, role: str) -> int:
        """Known cost of this process's calls to a role's model so far; 0 for one of this process."""
        return self._served[role].settled_micro_usd() if role in self._served else 0

    def close(self) -> None:
        """Whoever opened the parts closes them."""


class _Gathering:
    """The parts of one answer as they come in, from several threads."""

    def __init__(self, count: int, *, parts: int) -> None:
        self.done: Future[list[Reply]] = Future()
        self._count, self._parts = count, parts
        self._found: dict[int, Reply] = {}
        self._lock = Lock()
        if not parts:
            self.done.set_result([])

    def take(
        self, future: "Future[list[CallReply]]", read: Callable[[Sequence[CallReply]], Mapping[int, Reply]]
    ) -> None:
        """One part is there, or has failed."""
        try:
            self.put(read(future.result()))
        except BaseException as error:  # a failure of the pool's thread belongs to who waits here
            with self._lock:
                if not self.done.done():
                    self.done.set_exception(error)

    def put(self, replies: Mapping[int, Reply]) -> None:
        """One part is there."""
        with self._lock:
            self._found |= replies
            self._parts -= 1
            if not self._parts and not self.done.done():
                self.done.set_result([self._found[index] for index in range(self._count)])
