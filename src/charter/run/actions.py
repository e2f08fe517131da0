"""Actions of a person on a run: approve a stage, stop it, start it again; each written down with who did it.

Commands and buttons of the dashboard call these functions, so that both do the same and leave the same trace in
`events.jsonl`.

Stopping a run from another terminal, on whichever machine its supervisor is, and jobs that have none any more.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.fingerprint import differences
from charter.artifacts.job_files import Control, JobFiles, numbers, read_submission
from charter.artifacts.lease import LEASE, Holder, ends_within, read_holder, working_holder
from charter.artifacts.sample_prompts import SampleNote, append_note
from charter.artifacts.stage_state import Phase
from charter.engines.project import load_project, project_of
from charter.errors import CharterError, ExitCode, UsageError
from charter.launch.job_handle import LiveJob
from charter.launch.job_launcher import left_job
from charter.launch.launcher import RUNS, open_scheduler
from charter.launch.scheduler import Scheduler
from charter.ledger import Ledger
from charter.ledger.attempt import tags_text
from charter.ledger.store import ledger_place
from charter.ledger.stored import CREDIT, FEE, OtherCharge
from charter.run.approval import Approval, approve, who_is_here
from charter.run.events import Events
from charter.run.graph import Acceptance, Pipeline, PlannedStage, build_pipeline, record_acceptance
from charter.run.inputs import REVISIONS_FILE, read_revisions, revision_number
from charter.run.paths import TAGS_FILE, own_tags, run_dir, stages_dir
from charter.run.staleness import assess
from charter.run.supervisor import NOTICE_FILE
from charter.spec import PROJECT_FILE
from charter.spec.load import BUDGET_FILE, PROJECT_LIMIT, limits_of
from charter.spec.project import Project
from charter.spec.yaml_source import read_document
from charter.units import MICRO_USD_PER_USD, format_usd, parse_usd

LOOK_SECONDS = 0.5
FRESH_SECONDS = 60.0
"""A supervisor on another machine touches its lease more often."""


def stop_run(root: Path, *, wait_seconds: float) -> Holder | None:
    """Ask the run of a project directory to stop at its next safe point and wait for it.

    Returns the process that was stopped, None when none is running.
    """
    lease = run_dir(root) / LEASE
    holder = read_holder(lease)
    if holder is None:
        return None
    if not holder.is_here:
        return _stop_elsewhere(root, holder, wait_seconds)
    if not holder.is_alive:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    if not ends_within(holder, wait_seconds):
        raise UsageError(
            f"the run ({holder}) was asked to stop and is still on its way to a safe point; look again with "
            "`charter status`"
        )
    return holder


def stop_left_jobs(root: Path, *, wait_seconds: float) -> list[str]:
    """Stop the jobs that a supervisor has left under way, at a checkpoint where there is time; their names."""
    from charter.engines.project import load_project

    engines = _engines(root)
    if not engines:
        return []
    project = load_project(root, env=dict(os.environ))
    stopped = []
    for name in sorted(engines):
        scheduler = open_scheduler(project, name)
        try:
            for stage_dir in sorted(stages_dir(root).iterdir()):
                if (job := left_job(scheduler, stage_dir)) is not None:
                    _stop_job(scheduler, job, wait_seconds)
                    stopped.append(f"{name} job {job.job_id} ({stage_dir.name})")
        finally:
            scheduler.close()
    return stopped


def end_sent_supervisor(root: Path) -> str:
    """End the supervisor that `charter submit` has sent and that does not work yet; its job, empty without one."""
    from charter.engines.project import load_project
    from charter.launch import sent_supervisor

    if not sent_supervisor.supervisor_dir(root).is_dir():
        return ""
    return sent_supervisor.end_sent_supervisor(load_project(root, env=dict(os.environ)), root)


def _stop_elsewhere(root: Path, holder: Holder, wait_seconds: float) -> Holder | None:
    """A supervisor on another machine is left a notice, as for a machine that will be taken away."""
    lease, notice = run_dir(root) / LEASE, run_dir(root) / NOTICE_FILE
    if _age_seconds(lease) > FRESH_SECONDS:
        return None
    notice.touch()
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        present = read_holder(lease)
        if present is None:
            return holder
        if present != holder:
            # Its engine has started it again meanwhile, and the new start forgets notices that were left before it.
            holder = present
            notice.touch()
        elif _age_seconds(lease) > FRESH_SECONDS:
            # It has died in the meantime, and may wait in the queue to be started again.
            return None
        time.sleep(LOOK_SECONDS)
    raise UsageError(
        f"the run ({holder}) was left a notice to stop and is still on its way to a safe point; look again with "
        "`charter status`"
    )


def _age_seconds(lease: Path) -> float:
    """Since it was last touched; nothing for one that has just been given back, which the next look sees."""
    try:
        return time.time() - lease.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _stop_job(scheduler: Scheduler, job: LiveJob, wait_seconds: float) -> None:
    job.files.ask(Control(stop=True))
    if job.state.phase == "queued":
        scheduler.cancel(job.job_id)
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        if scheduler.poll([job.job_id])[job.job_id].phase not in ("queued", "running"):
            return
        time.sleep(LOOK_SECONDS)
    scheduler.cancel(job.job_id)


def _engines(root: Path) -> set[str]:
    """The engines that have jobs of this run which nobody has settled yet."""
    names = set()
    for stage_dir in stages_dir(root).iterdir() if stages_dir(root).is_dir() else ():
        for number in numbers(stage_dir)[-1:]:
            submission = read_submission(JobFiles(stage_dir, number))
            if submission is not None and not submission.ended and submission.scheduler in RUNS:
                names.add(submission.scheduler)
    return names


START_LOG = "started-from-page.txt"
"""What a run says that a page has started, in the run directory."""
STOP_SECONDS = 180.0
"""For a stage to reach a safe point and write its checkpoint; jobs that a supervisor has left are ended after it."""
MOST_USD = 1e9
"""Of one fee."""
LONGEST_REASON = 500
"""Characters of that log that an event repeats."""


def check_approvable(pipeline: Pipeline, stage: PlannedStage) -> None:
    """Raise UsageError where there is nothing to approve, or nothing to look at yet."""
    if not stage.spec.needs_approval:
        raise UsageError(f"stage {stage.name} needs no approval; `needs_approval: true` in charter.yaml would hold it")
    if assess(stage, pipeline.root).done:
        raise UsageError(f"stage {stage.name} is done; there is nothing to approve")
    unfinished = [name for name in stage.stage_inputs if not assess(pipeline.stages[name], pipeline.root).done]
    if unfinished:
        raise UsageError(
            f"stage {stage.name} reads {', '.join(unfinished)}, not finished yet, so that there is nothing to look at\n"
            "  `charter run` works up to the approval and says when it waits"
        )
    if missing := pipeline.inputs.problems_of(stage.outside_inputs):
        raise UsageError("; ".join(f"{problem.path}: {problem.message}" for problem in missing))


def approve_stage(pipeline: Pipeline, stage: PlannedStage, *, note: str = "", by: str | None = None) -> Approval:
    """Let a stage start under its present fingerprint."""
    check_approvable(pipeline, stage)
    given = approve(stage, pipeline.root, note=note, by=by)
    said = f"approved by {given.by}{f': {note}' if note else ''}"
    _write_down(pipeline.root, "stage_approved", said, stage=stage.name, by=given.by)
    return given


def accept_model(project: Project, root: Path, name: str) -> list[str]:
    """Take what an endpoint serves now as a new revision of a model; return the finished stages that stay as they are.

    Stages that are not finished start anew with it; answers of the revision before stay stored under that one.
    """
    serving = project.serving.get(name)
    if serving is None or serving.endpoint is None or not serving.is_used:
        served = [other for other, item in project.serving.items() if item.endpoint is not None and item.is_used]
        raise UsageError(f"no endpoint of this project serves {name!r}; there are {', '.join(served) or 'none'}")
    revisions = read_revisions(run_dir(root))
    before = build_pipeline(project, root, revisions=revisions)
    number = revision_number(serving, revisions.get(name)) + 1
    who = who_is_here()
    entry = {"number": number, "revision": serving.revision, "accepted_at": time.time(), "by": who}
    raised = {**revisions, name: entry}
    stays = [stage for stage in before.stages.values() if _asks(stage, name) and assess(stage, before.root).done]
    for stage in stays:
        # One by one, in the order of execution: a later one builds on the fingerprint that an earlier one keeps.
        after = build_pipeline(project, root, revisions=raised).stages[stage.name]
        record_acceptance(
            run_dir(root),
            Acceptance(
                stage=stage.name,
                kept=stage.fingerprint,
                wanted=after.asked_fingerprint,
                differences=tuple(differences(stage.identity, after.identity)),
            ),
        )
    durable.write_json(run_dir(root) / REVISIONS_FILE, raised)
    names = [stage.name for stage in stays]
    stay = f"; {', '.join(names)} stay as they are" if names else ""
    _write_down(
        root, "model_accepted", f"{name} is now its revision {number}, accepted by {who}{stay}", model=name, by=who
    )
    return names


def _asks(stage: PlannedStage, name: str) -> bool:
    return any(item.name == name for items in stage.inputs.values() for item in items)


LONGEST_FEE = timedelta(days=3653)
"""Ten years: longer than reserved terms are sold for. Each day of a fee has a row of sums."""


def add_charge(
    project: Project, root: Path, *, what: str, usd: str, since: datetime, until: datetime, provider: str, stage: str
) -> OtherCharge:
    """Add a fee, or below $0 a credit, to the ledger of a run, from one UTC day to before another; each only once."""
    sign, service, size = (-1, CREDIT, usd.strip()[1:]) if usd.strip().startswith("-") else (1, FEE, usd)
    try:
        amount = parse_usd(size)
    except ValueError as error:
        raise UsageError(f"--usd {usd!r}: {error}") from None
    if stage and stage not in project.pipeline:
        raise UsageError(f"no stage is called {stage!r}; the stages are {', '.join(project.pipeline)}")
    if not 0 < amount <= MOST_USD:
        raise UsageError(
            f"--usd {usd!r}: a fee is above $0 and at most {format_usd(MOST_USD)}; a credit is as much below it"
        )
    begin, end = (day.replace(tzinfo=UTC).timestamp() for day in (since, until))
    if not what.strip() or end <= begin:
        raise UsageError("a fee is for something, and its --to is after its --from")
    if until - since > LONGEST_FEE:
        raise UsageError(
            f"a fee is for at most {LONGEST_FEE.days:,} days, and this one is for {(until - since).days:,}"
        )
    charge = OtherCharge(
        run=project.name,
        stage=stage,
        category="Other",
        service=service,
        provider=provider or "unknown",
        resource=what.strip(),
        started_at=begin,
        ended_at=end,
        quantity="1",
        unit="Units",
        micro_usd=sign * round(amount * MICRO_USD_PER_USD),
        price_source=f"charter cost add by {who_is_here()}",
        owner=project.owner,
        tags=tags_text(project.tags),
    )
    durable.make_dir(run_dir(root))
    with Ledger.open(ledger_place(run_dir(root.resolve()), project.storage.ledger)) as ledger:
        before = ledger.other_charges(run=project.run_in_ledger)
        if any(replace(item, run=charge.run, price_source=charge.price_source) == charge for item in before):
            raise UsageError(f"the {service.lower()} for {charge.resource} over these days is in the ledger already")
        ledger.record_other([charge])
    said = f"{format_usd(sign * amount)} for {charge.resource} added by {who_is_here()}"
    _write_down(root, f"{service.lower()}_added", said, by=who_is_here())
    return charge


def raise_budget(root: Path, limit: str, *, of: str = PROJECT_LIMIT, by: str | None = None) -> tuple[float, float]:
    """Raise a limit of a project for its run; return the limits before and now. The file stays as it is.

    `of` is the limit's key in charter.yaml: `budget.limit`, `budget.owners.ann`, `budget.tags.team=red`.

    A run that is under way reads it when it is next started.
    """
    try:
        limit_usd = parse_usd(limit)
    except ValueError as error:
        raise UsageError(f"the new limit {limit!r}: {error}") from None
    budget = load_project(root, env=dict(os.environ)).budget
    if budget is None:
        raise UsageError("this project has no budget; `budget: {limit: $100}` in charter.yaml sets one")
    before = limits_of(budget).get(of)
    if before is None:
        raise UsageError(f"there is no limit {of}; there are {', '.join(limits_of(budget))}")
    if not before < limit_usd < math.inf:
        raise UsageError(
            f"{format_usd(limit_usd)} is not above the limit of {format_usd(before)}; a lower one goes into "
            "charter.yaml"
        )
    in_file = project_of(read_document(root / PROJECT_FILE), env=dict(os.environ)).budget
    written = limits_of(in_file) if in_file is not None else {}
    path, who = run_dir(root) / BUDGET_FILE, by or who_is_here()
    raised = {name: now for name, now in {**limits_of(budget), of: limit_usd}.items() if written.get(name) != now}
    over = {name: {"limit_usd": now, "over_usd": written.get(name, now)} for name, now in raised.items()}
    project = over.pop(PROJECT_LIMIT, {"limit_usd": budget.limit, "over_usd": budget.limit})
    durable.make_dir(run_dir(root))
    durable.write_json(path, {**project, **({"limits": over} if over else {}), "by": who, "at": time.time()})
    which = "budget" if of == PROJECT_LIMIT else of
    said = f"{which} raised from {format_usd(before)} to {format_usd(limit_usd)} by {who}"
    _write_down(root, "budget_raised", said, by=who)
    return before, limit_usd


def rerun_stage(pipeline: Pipeline, name: str, *, by: str | None = None) -> Path:
    """Set a stage's directory aside, so that the next run computes it anew; return where it is now.

    Stages that read its outputs stay done: under the same fingerprint the same outputs are expected. Refused while a
    run is active, which may hold the directory.
    """
    stage, root = pipeline.stage(name), pipeline.root
    _refuse_active(root)
    if not stage.directory.exists():
        raise UsageError(f"stage {name} has not run yet; `charter run` starts it")
    if stage.kept is not None:
        raise UsageError(f"stage {name} keeps an earlier result that was accepted; `charter run` would take it again")
    if assess(stage, root).phase in (Phase.RUNNING, Phase.QUEUED, Phase.STARTING):
        raise UsageError(f"a job of stage {name} is still under way; `charter stop` ends it")
    target, who = durable.move_aside(stage.directory, "rerun"), by or who_is_here()
    _write_down(root, "stage_rerun", f"set aside as {target.name} by {who}, to run again", stage=name, by=who)
    return target


def note_sample(root: Path, sample: str, *, flagged: bool, note: str, stage: str = "", by: str | None = None) -> None:
    """Flag a sample, or take the flag away, with a remark for the next reader."""
    who = by or who_is_here()
    durable.make_dir(run_dir(root))
    append_note(run_dir(root), sample, SampleNote(flagged=flagged, note=note, by=who), stage=stage)
    word = "flagged" if flagged else "noted"
    _write_down(root, "sample_noted", f"sample {sample} {word} by {who}{f': {note}' if note else ''}", by=who)


MOST_TAGS = 20
LONGEST_TAG = 60


def tag_run(root: Path, tags: Sequence[str], *, remove: bool = False, by: str | None = None) -> dict[str, str]:
    """Put tags on a run, or take them off, so that it is found; return those that it has then.

    A tag is a word, or `name=value`. The project's file keeps its own, which bills are split by.
    """
    path = run_dir(root) / TAGS_FILE
    have = own_tags(durable.read_json(path)) if path.exists() else {}
    in_file = load_project(root, env=dict(os.environ)).tags if (root / PROJECT_FILE).exists() else {}
    done = []
    for tag in tags:
        name, equals, value = (part.strip() for part in tag.partition("="))
        if not name or (equals and not value) or not f"{name}{value}".isprintable():
            raise UsageError(f"{tag!r} is no tag; give a word, or name=value")
        if max(len(name), len(value)) > LONGEST_TAG:
            raise UsageError(f"{tag[:20]!r}...: a tag has at most {LONGEST_TAG} characters")
        if name in in_file:
            raise UsageError(f"charter.yaml has the tag {name}: {in_file[name]}; change it there")
        if remove and name not in have:
            raise UsageError(f"this run has no tag {name!r} of its own; it has {', '.join(have) or 'none'}")
        if remove:
            del have[name]
        else:
            have[name] = value
        done.append(f"{name}: {value}" if value else name)
    if len(have) > MOST_TAGS:
        raise UsageError(f"a run has at most {MOST_TAGS} tags")
    who = by or who_is_here()
    durable.make_dir(run_dir(root))
    durable.write_json(path, {"tags": have})
    _write_down(root, "run_tagged", f"{'tag off' if remove else 'tagged'} {', '.join(done)} by {who}", by=who)
    return have


def stop(root: Path, *, wait_seconds: float, by: str | None = None) -> list[str]:
    """Stop a run at its next safe point, or the jobs that its supervisor has left; return what was stopped in words."""
    who = by or who_is_here()
    if working_holder(run_dir(root) / LEASE) is not None:
        _write_down(root, "stop_requested", f"asked to stop by {who}", by=who)
    stopped = stop_run(root, wait_seconds=wait_seconds)
    if stopped is not None:
        return [f"stopped ({stopped}); `charter run` continues it"]
    words = []
    if sent := end_sent_supervisor(root):
        words.append(f"stopped {sent}, the supervisor, which had not begun; `charter submit` sends another")
    jobs = stop_left_jobs(root, wait_seconds=wait_seconds)
    words += [f"stopped {job}, whose supervisor is gone; `charter run` continues it" for job in jobs]
    if words:
        _write_down(root, "stop_requested", f"{'; '.join(words)}; by {who}", by=who)
    return words


def stop_beside(root: Path, *, by: str) -> None:
    """Stop a run without waiting for it; what goes wrong is an event."""

    def work() -> None:
        try:
            stop(root, wait_seconds=STOP_SECONDS, by=by)
        except (CharterError, OSError) as error:
            _write_down(root, "stop_failed", str(error).split("\n")[0])

    threading.Thread(target=work, daemon=True).start()


def _refuse_active(root: Path) -> None:
    holder = working_holder(run_dir(root) / LEASE)
    if holder is not None:
        raise UsageError(f"a run is active here already ({holder})")


def start(root: Path, *, sweep: str | None = None, by: str | None = None) -> None:
    """Start `charter run` in a process of its own, which outlives this one; refused while a run is active.

    `sweep` runs the points of that sweep instead. What it says goes to a file; where it ends before the run has begun,
    an event says why.
    """
    _refuse_active(root)
    sweeps = load_project(root, env=dict(os.environ)).sweeps if sweep is not None else {}
    if sweep is not None and sweep not in sweeps:
        raise UsageError(f"no sweep is called {sweep!r}; charter.yaml has {', '.join(sweeps) or 'none'}")
    durable.make_dir(run_dir(root))
    what, who = f"sweep {sweep} " if sweep is not None else "", by or who_is_here()
    _write_down(root, "start_requested", f"{what}started by {who}", by=who)
    log = run_dir(root) / START_LOG
    command = [sys.executable, "-m", "charter.cli.main", "run", "-C", str(root), "--yes"]
    command += ["--sweep", sweep] if sweep is not None else []
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
    # A process that nobody waits for stays in the system's table for as long as the page is served.
    threading.Thread(target=_wait_for, args=(process, root, log), daemon=True).start()


def _wait_for(process: "subprocess.Popen[bytes]", root: Path, log: Path) -> None:
    code = process.wait()
    if code not in (ExitCode.DONE, ExitCode.STAGE, ExitCode.INTERRUPTED, ExitCode.CTRL_C):
        text = log.read_text(encoding="utf-8", errors="replace").strip()
        reason = text[text.rfind("error[") :] if "error[" in text else text
        _write_down(root, "start_failed", f"the run did not go on (exit code {code}): {reason[:LONGEST_REASON]}")


def _write_down(root: Path, event: str, message: str, **more: str) -> None:
    """Append what was done to the run's events; an action that cannot be written down is not done."""
    try:
        Events(run_dir(root), ()).emit(event, message=message, **more)
    except OSError as error:
        raise CharterError(f"{run_dir(root)}: {error.strerror}, so that nothing can be written down there") from None
