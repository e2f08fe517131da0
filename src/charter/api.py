"""Charter from Python: plans and estimates as the command line makes them, for scripts and notebooks.

    import charter.api as charter
    plan = charter.plan("my-project", overrides=["resources.max_nodes=8"], objective="fastest")
    plan.seconds.p90, plan.usd, [stage.option.label for stage in plan.stages]

Nothing here reads the environment or the clock; give `today` to have old prices noted and `start` to have dates.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from charter.catalog import accelerators, models
from charter.catalog.accelerators import CPU, Accelerator
from charter.catalog.price_book import PriceBook
from charter.engines.project import load_project, project_of
from charter.errors import UsageError
from charter.physics.fitted import load
from charter.physics.memory import training_memory
from charter.physics.memory_profiles import PROFILES
from charter.physics.step_time import StepTime, training_step
from charter.physics.terms import MemoryBreakdown
from charter.plan.decision import Objective
from charter.plan.knowledge import Knowledge, memory_of_stack, shipped
from charter.plan.machine import Machine, probe_machine
from charter.plan.plan import Plan
from charter.plan.project_plan import plan_project
from charter.plan.stage_memory import training_precision
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, ZeroStage
from charter.spec.project import Project
from charter.spec.stage import SftStage
from charter.spec.yaml_source import Document

if TYPE_CHECKING:
    from charter.report.pilot import Pilot

__all__ = ["Estimate", "Page", "estimate", "next_purchases", "page", "plan", "project"]


def project(
    source: str | Path | Mapping[str, Any] | Project,
    *,
    overrides: Sequence[str] = (),
    objective: Objective | None = None,
) -> Project:
    """Return the checked project of a `charter.yaml`, its directory, or a mapping in the same form.

    `overrides` are texts like `pipeline.ppo.episodes=640` (`--set`). Raises `SpecError` with every problem found.

    >>> text = {"name": "x", "models": {"base": "meta-llama/Llama-3.1-8B"}, "data": {"chat": "chat.jsonl"},
    ...         "pipeline": {"sft": {"kind": "sft", "init": "base", "data": "chat"}}}
    >>> project(text, overrides=["seed=3"]).seed
    3
    """
    changes = [*overrides, *([] if objective is None else [f"objective={objective}"])]
    match source:
        case Project():
            if overrides:
                raise UsageError("overrides need a file or a mapping; change a Project with dataclasses.replace")
            return source if objective is None else replace(source, objective=objective)
        case Mapping():
            return project_of(Document(value=json.loads(json.dumps(dict(source)))), overrides=changes)
    path = Path(source)
    if not path.exists():
        raise UsageError(f"there is no {path}; give a charter.yaml, its directory, or a mapping")
    return load_project(path, overrides=changes)


def plan(
    source: str | Path | Mapping[str, Any] | Project,
    *,
    overrides: Sequence[str] = (),
    objective: Objective | None = None,
    directory: str | Path | None = None,
    prices: PriceBook | None = None,
    calibration: str | Path | None = None,
    machine: Machine | None = None,
    alternatives: int = 0,
    today: date | None = None,
    start: datetime | None = None,
) -> Plan:
    """Return the plan that `charter plan` prints, as an object.

    `directory` holds data files, `prices.csv` and `calibration.json`; the default is that of the file, else the current
    one. `prices` replaces the price book, `machine` the probe of this machine. Raises `InfeasibleError` when a stage
    fits nowhere, `BudgetError` when `fastest` or `balanced` cannot meet the budget.
    """
    planned = project(source, overrides=overrides, objective=objective)
    return plan_project(
        planned,
        _root(source) if directory is None else Path(directory),
        machine=machine,
        knowledge=None if calibration is None else Knowledge.of(load(Path(calibration))),
        prices=prices,
        today=today,
        alternatives=alternatives,
        start=start,
    )


def _root(source: object) -> Path:
    if not isinstance(source, str | Path):
        return Path()
    return Path(source) if Path(source).is_dir() else Path(source).parent


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One training job on one set of accelerators: peak memory and step time, term by term."""

    architecture: Architecture
    accelerator: Accelerator
    layout: Layout
    memory: MemoryBreakdown
    """Of the fullest accelerator; `terms`, `by_part()`, `interval`."""
    step: StepTime
    """Of one optimizer step; `terms`, `seconds`, `tokens_per_second`, `model_flops_utilisation`."""

    @property
    def fits(self) -> bool:
        """Return True if the median peak is within the memory of the device."""
        return self.memory.fits(self.accelerator.memory_bytes)

    def hours(self, tokens: float) -> float:
        """Return the median hours of undisturbed training on this many tokens."""
        return tokens / self.step.tokens_per_second / 3600


def estimate(
    model: str | Architecture,
    accelerator: str = "H100:8",
    *,
    layout: Layout | None = None,
    seq_len: int = 4096,
    dtype: Literal["bf16", "fp32"] = "bf16",
    adapter: Adapter | None = None,
    knowledge: Knowledge | None = None,
) -> Estimate:
    """Estimate memory and step time of training `model` (catalog name, path or architecture) with the native engine.

    The default layout is fully sharded data parallelism over all accelerators, one sequence each. The memory is that of
    `charter plan mem`, the time that of a training step in `charter plan`, both with their calibrated intervals.

    >>> found = estimate("meta-llama/Llama-3.1-8B", "H100:8", seq_len=2048)
    >>> found.fits, 20e9 < found.memory.total_bytes < 80e9, found.step.tokens_per_second > 10_000
    (True, True, True)
    """
    device, count = _device(accelerator)
    shape = model if isinstance(model, Architecture) else models.resolve(model).architecture
    chosen = layout or Layout(data=count, zero=ZeroStage.PARAMETERS)
    if chosen.num_accelerators != count:
        raise UsageError(
            f"the layout {chosen.label} uses {chosen.num_accelerators} accelerators, {accelerator} has {count}; "
            f"data x tensor x pipeline x context must be {count}"
        )
    constants = knowledge or shipped()
    precision = training_precision(dtype, device)
    learned = memory_of_stack("native", "training memory" if adapter is None else "adapter memory")
    memory = training_memory(
        shape,
        chosen,
        seq_len=seq_len,
        precision=precision,
        adapter=adapter,
        accelerator=device,
        profile=PROFILES["native"],
        constants=learned.training,
    )
    step = training_step(
        shape,
        chosen,
        device,
        seq_len=seq_len,
        dtype=dtype,
        precision=precision,
        adapter=adapter,
        constants=constants.training,
    )
    kind = SftStage(init="model", data=(), adapter=adapter)
    sigma = constants.time_sigma(kind, device, moe=shape.mixture is not None)
    return Estimate(
        architecture=shape,
        accelerator=device,
        layout=chosen,
        memory=replace(memory, sigma=learned.sigma),
        step=replace(step, sigma=sigma),
    )


def _device(text: str) -> tuple[Accelerator, int]:
    name, count = accelerators.parse_request(text)
    return (probe_machine().processor(), 1) if name == CPU else (accelerators.get(name), count)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A plan as one HTML page, which a notebook shows as a browser does."""

    html: str

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" style="width:100%;height:900px;border:0"></iframe>'


def page(plan: Plan, *, now: datetime) -> Page:
    """Return the page of `charter plan --html`; `now` is the time of writing that the page shows."""
    from charter.report.plan_page.page import plan_html

    start = None if plan.start is None else plan.start.timestamp()
    return Page(html=plan_html(plan, now=now.timestamp(), start=start))


def next_purchases(
    directory: str | Path,
    *,
    overrides: Sequence[str] = (),
    budget_usd: float | None = None,
    deadline_seconds: float | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
) -> "Pilot":
    """Return what `charter plan ask -C` prints: labels, judge and method by the gain that finished sweeps let expect.

    `env` is what `${NAME}` in the file stands for.
    """
    from charter.report.pilot import PilotQuestion, read_pilot

    path = Path(directory)
    question = PilotQuestion(
        path=path,
        project=load_project(path, overrides=overrides, env=env),
        root=_root(path),
        overrides=overrides,
        budget_usd=budget_usd,
        deadline_seconds=deadline_seconds,
        env=env,
    )
    return read_pilot(question)
