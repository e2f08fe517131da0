"""A stage that another engine computes: `python -m charter.hosted.run --stage-dir D`, one process of Charter's beside.

The engine's files are rendered, its processes started under a guard, followed and stopped; its checkpoints become
Charter's, so that hashes, retention and replicas are what they are for every stage. It is done when the step target is
reached and the weights are verified: an exit code of 0 alone means nothing.
"""

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from charter.artifacts import durable
from charter.artifacts.checkpoints import Checkpoint
from charter.artifacts.group import FAILURE, PUBLISH, START
from charter.artifacts.hosted_facts import HostedFacts, write_hosted_facts
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import PEER_EXIT, PEER_LOST, stage_main
from charter.engines import handover_engine, render
from charter.engines.common.adapter import EngineAdapter
from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import Handover, HandoverPaths
from charter.engines.installed import ENGINE, adapter_of, interpreter_of
from charter.errors import DataError, InterruptedRunError, StageError
from charter.hosted.adapter_merge import write_merged
from charter.hosted.beating import beating
from charter.hosted.data_files import DATA, DataFiles, write_data
from charter.hosted.engine_process import EngineProcess, end_left, engine_environment
from charter.hosted.follow import Follower
from charter.hosted.log_pump import LogPump
from charter.hosted.reward_model import write_preference_model
from charter.hosted.stage_models import StageModels, stage_models
from charter.hosted.weights import check_language_model
from charter.hosted.workplace import LOG, WORK, discard, empty, take_over, take_over_left
from charter.launch.handing_over import handover_of
from charter.models.engine_layout import StageLayout
from charter.models.ranks import Ranks
from charter.spec.stage import PreferenceModelStage
from charter.train.meter import Meter
from charter.train.setup import Setup

SIGNALLED = 128
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|DefaultCPUAllocator: can't allocate memory")
_LAST_LINES = 12


def run(stage: StageDir) -> None:
    """Have the engine train to the target step, and publish what it made."""
    torch.set_num_threads(int(stage.job.frozen.get("threads", 1)))
    meter = Meter(stage.path, device=torch.device("cpu"), processes=int(stage.job.frozen.get("world_size", 1)))
    setup = Setup(stage=stage, ranks=Ranks(), layout=StageLayout(), meter=meter)
    HostedStage(stage, setup, adapter_of(stage.job)).run()


@dataclass(frozen=True)
class HostedStage:
    """One start of a stage that another engine computes."""

    stage: StageDir
    setup: Setup
    adapter: EngineAdapter

    @property
    def work(self) -> Path:
        """Return the directory that the engine works in."""
        return self.stage.path / WORK

    def run(self) -> None:
        """Start the engine where it stopped, follow it to its end, and publish."""
        if ended := end_left(self.stage.path):
            print(f"ended {ended} processes that an earlier start had left", file=sys.stderr)
        self.stage.sweep()
        take_over_left(self.stage, self.adapter, self.work)
        checkpoint = self._checkpoint()
        self.stage.beat(START)
        empty(self.stage, self.work)
        models = stage_models(self.stage.job, self.work)
        data = write_data(self.stage, self.setup, models.tokenizer, self.work / DATA)
        handover, rendered = self._rendered(models, data, checkpoint)
        facts = self._tell(rendered, data)
        self._compute(rendered, data, 0 if checkpoint is None else checkpoint.step)
        self._publish(handover, models, facts)
        discard(self.work)

    def _checkpoint(self) -> Checkpoint | None:
        checkpoint = self.stage.latest_checkpoint()
        engine = self.stage.job.spec.engine
        if checkpoint is not None and (by := checkpoint.manifest["frozen"].get(ENGINE, "native")) != engine:
            raise DataError(
                f"{checkpoint.path} was written by the engine {by}, and {engine} cannot read it\n"
                f"  set `engine: {by}` again, or move {self.stage.path} away to start the stage anew"
            )
        return checkpoint

    def _rendered(
        self, models: StageModels, data: DataFiles, checkpoint: Checkpoint | None
    ) -> tuple[Handover, RenderedRun]:
        resume = None if checkpoint is None else self.adapter.place(checkpoint.path, checkpoint.step, self.work)
        handover = handover_of(
            self.stage.job,
            paths=HandoverPaths(
                work=str(self.work),
                models={role: str(path) for role, path in models.directories.items()},
                data=data.paths,
                resume_from=resume,
            ),
            architectures=models.architectures,
            target_steps=data.target_steps,
            rows=data.rows,
        )
        rendered = render(handover)
        for name, text in rendered.files.items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return handover, rendered

    def _tell(self, rendered: RenderedRun, data: DataFiles) -> HostedFacts:
        """Write what a reader of the log must know, into the log and beside the record."""
        job = self.stage.job
        engine = handover_engine(job.spec.engine)
        version = str(job.frozen.get(engine.package, ""))
        notes = [*data.notes, *self.setup.skipped.lines()]
        if version != engine.version:
            notes.append(f"{engine.title} {version} is installed; the mapping was checked against {engine.version}")
        resume = rendered.resume
        facts = HostedFacts(
            engine=engine.name,
            version=version,
            checked_version=engine.version,
            guarantee=resume.guarantee,
            reason=resume.reason,
            source=resume.source,
            notes=tuple(notes),
        )
        write_hosted_facts(self.stage.path, facts)
        print(f"{engine.title} {version}; when resumed: {resume.guarantee.replace('_', '-')} ({resume.reason})")
        for note in notes:
            print(f"note: {note}")
        sys.stdout.flush()
        return facts

    def _compute(self, rendered: RenderedRun, data: DataFiles, first_step: int) -> None:
        """Run the engine to its end; raise unless that end is the target."""
        job, log = self.stage.job, self.work / LOG
        python = interpreter_of(job.engines, job.spec.engine)
        own = job.engines.get(job.spec.engine)
        variables = {**rendered.environment, **(own.environment if own else {})}
        process = EngineProcess(
            [python if word == "python" else word for word in rendered.command],
            directory=self.work,
            log=log,
            environment=engine_environment(variables, python=python),
            stage_dir=self.stage.path,
        )
        pump = LogPump(log)
        follower = Follower(
            stage=self.stage,
            adapter=self.adapter,
            process=process,
            work=self.work,
            log=log,
            data=data,
            meter=self.setup.meter,
            first_step=first_step,
            pump=pump,
        )
        try:
            code = follower.run()
        finally:
            process.end()
        take_over(self.stage, self.adapter, self.work)
        self._check_end(code, follower, data.target_steps, pump)

    def _check_end(self, code: int, follower: Follower, target: int, pump: LogPump) -> None:
        reached = self.adapter.final_step(self.work)
        if code == 0 and reached == target:
            return
        saved = max((position.step for position in self.stage.checkpoints.positions()), default=0)
        if follower.stopping:
            raise InterruptedRunError(f"stopped after the checkpoint of step {saved} of {target}")
        tail = pump.last_lines(_LAST_LINES)
        title = handover_engine(self.stage.job.spec.engine).title
        if code == 0:
            at = "no weights of a known step" if reached is None else f"the weights of step {reached}"
            raise StageError(
                f"{title} ended with exit code 0 and left {at}; {target} steps were asked for, it logged "
                f"{follower.last_step}\n{tail}"
            )
        if _OUT_OF_MEMORY.search(tail):
            raise MemoryError(tail.strip().splitlines()[-1])
        if code > SIGNALLED:
            self._lost(f"{title} was killed by signal {code - SIGNALLED}")
        raise StageError(f"{title} ended with exit code {code} at step {follower.last_step} of {target}\n{tail}")

    def _lost(self, message: str) -> None:
        """End as a process that lost another one: the supervisor starts it again from its checkpoint."""
        print(message, file=sys.stderr)
        content = {"exit_code": PEER_EXIT, "label": PEER_LOST, "message": message}
        durable.write_hint(self.stage.path / FAILURE, content)
        raise SystemExit(PEER_EXIT)

    def _publish(self, handover: Handover, models: StageModels, facts: HostedFacts) -> None:
        """Verify the final weights, in the form that later stages load, and publish them."""
        self.stage.beat(PUBLISH)
        target = handover.target_steps
        conversion: dict[str, object] = {}

        def write(directory: Path) -> None:
            conversion.update(self._convert(handover, models, directory / "model"))

        notes = (facts.words(), *facts.notes)
        with beating(self.stage):
            self.stage.publish_outputs(write, step=target, target_step=target, notes=notes)
        write_hosted_facts(self.stage.path, replace(facts, conversion=conversion))

    def _convert(self, handover: Handover, models: StageModels, target: Path) -> Mapping[str, object]:
        spec = self.stage.job.spec
        if not isinstance(spec, PreferenceModelStage):
            facts = self._write_weights(handover, target)
            check_language_model(target)
            return facts
        plain = self.work / "plain"
        facts = self._write_weights(handover, plain)
        write_preference_model(plain, models.directories["init"], target, self.setup, spec)
        shutil.rmtree(plain)
        return facts

    def _write_weights(self, handover: Handover, target: Path) -> Mapping[str, object]:
        directory, adapter = self.adapter.adapter_output, getattr(handover.stage, "adapter", None)
        if directory is None or adapter is None:
            return self.adapter.convert(self.work, handover, target)
        return write_merged(self.work / directory, handover, adapter, target)


if __name__ == "__main__":
    stage_main(run)
