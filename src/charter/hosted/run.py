"""A stage that another engine computes: `python -m charter.hosted.run --stage-dir D`, one process of Charter's beside.

The engine's files are rendered, its processes started under a guard, followed and stopped; its checkpoints become
Charter's, so that hashes, retention and replicas are what they are for every stage. It is done when the step target is
reached and the weights are verified: an exit code of 0 alone means nothing.

On several nodes there is one such process on each. The first does all of this; the others start the engine as it says,
on their nodes, and end with it."""

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from charter.artifacts import durable
from charter.artifacts.checkpoints import Checkpoint
from charter.artifacts.group import PUBLISH, START, rank_of_process
from charter.artifacts.job import HostedFacts, read_execution, write_hosted_facts
from charter.artifacts.lease import host_id
from charter.artifacts.safetensors_file import read_header, write_tensors
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import LOST_PEER_WORDS, stage_main
from charter.engines import capabilities, handover_engine, render
from charter.engines.common.adapter import EngineAdapter
from charter.engines.common.capabilities import listed_rewards
from charter.engines.common.files import OWNER, PROCESSES, copy_beside, owner_of
from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import Handover, HandoverPaths
from charter.engines.common.reward_file import JUDGES_FILE, SCORES
from charter.engines.installed import ENGINE, adapter_of
from charter.errors import DataError, InterruptedRunError, StageError
from charter.hosted.data_files import DATA, DataFiles, write_data
from charter.hosted.engine_process import (
    BY_TORCHRUN,
    LAST_LINES,
    WORK,
    EngineEnd,
    EngineNodes,
    LogPump,
    driven_nodes,
    end_as_lost,
    end_left,
    run_beside,
    start_engine,
)
from charter.hosted.follow import Follower, beating, take_over
from charter.hosted.scores import RolloutScores, ScoreFiles
from charter.hosted.weights import StageModels, check_language_model, stage_models, write_merged
from charter.launch.handing_over import JUDGE, handover_of, placement_of
from charter.launch.servers import client_key
from charter.models.engine_layout import StageLayout
from charter.models.preference import HEAD_FILE, HEAD_WEIGHTS, load_preference_model
from charter.models.ranks import Ranks
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import PreferenceModelStage
from charter.train.encoded_pairs import EncodedPairs
from charter.train.judge_reward import JudgeService, serving_judges
from charter.train.meter import Meter
from charter.train.preference_model import score_statistics, stage_pairs
from charter.train.setup import Setup

AT_ITS_NODE = ("env", "NODE_RANK=${NODE_RANK}", "MASTER_ADDR=${MASTER_ADDR}", "RAY_PORT=${MASTER_PORT}")
"""What the script that makes a Ray of a stage's own nodes has to know, before the command of each."""


# -------- The directory that an engine works in: emptied before every start, but for what is still good.


LOG = "log.txt"


def take_over_left(stage: StageDir, adapter: EngineAdapter, work: Path) -> None:
    """The same for what an earlier start has left, when this machine has not gone down since.

    A file that was never flushed may have its size and not its content after that.
    """
    if owner_of(work) == _owner(stage):
        take_over(stage, adapter, work)


def empty(stage: StageDir, work: Path) -> None:
    """Remove everything that the engine has left, and say whose the directory is now."""
    if work.exists():
        durable.discard_dir(work)
    durable.make_dir(work)
    durable.write_json(work / OWNER, _owner(stage))


def discard(work: Path) -> None:
    """Remove the directory of a finished stage; its outputs have names of their own."""
    shutil.rmtree(work, ignore_errors=True)


def _owner(stage: StageDir) -> dict[str, str | int]:
    return {
        "engine": stage.job.spec.engine,
        "host": host_id(),
        "fingerprint": stage.job.fingerprint,
        PROCESSES: int(stage.job.frozen.get("world_size", 1)),
    }


# -------- A stage that another engine computes.


SCORE = "score.weight"
_EMBEDDINGS = "lm_head."


def write_preference_model(plain: Path, source: Path, target: Path, setup: Setup, spec: PreferenceModelStage) -> None:
    """Write the preference model of a classification model in `plain`; the rest comes from `source`, where it began."""
    tensors = {name: item for path in sorted(plain.glob("*.safetensors")) for name, item in read_header(path).items()}
    if SCORE not in tensors or tensors[SCORE].shape[0] != 1:
        raise StageError(f"the engine has left no model with one score: {plain} has no {SCORE} of one row")
    before = {name: item for path in sorted(source.glob("*.safetensors")) for name, item in read_header(path).items()}
    body = {name: item for name, item in tensors.items() if name != SCORE}
    embeddings = {name: item for name, item in before.items() if name.startswith(_EMBEDDINGS)}
    copy_beside(source, target)
    write_tensors(target / "model.safetensors", {**embeddings, **body})
    _write_head(plain, target)
    settings: dict[str, Any] = {"pooling": "last", "context": spec.context, "seq_len": spec.seq_len}
    _write_settings(target, {**settings, "score_mean": 0.0, "score_deviation": 1.0})
    check_language_model(target, beside=(HEAD_WEIGHTS,))
    model = load_preference_model(target)
    pairs = EncodedPairs(model, stage_pairs(setup, spec))
    mean, deviation = score_statistics(model, pairs, dtype=spec.dtype, tell=setup.stage.alive)
    _write_settings(target, {**settings, "score_mean": mean, "score_deviation": deviation})


def _write_head(plain: Path, target: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    for path in sorted(plain.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            if SCORE in file.keys():  # noqa: SIM118 (no mapping)
                weight = file.get_tensor(SCORE).float().contiguous()
    if not bool(weight.isfinite().all()):
        raise StageError(f"the weights that the engine has left are no model: {SCORE} is not finite")
    save_file({"weight": weight, "bias": torch.zeros(1)}, str(target / HEAD_WEIGHTS))


def _write_settings(target: Path, settings: dict[str, Any]) -> None:
    (target / HEAD_FILE).write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8")


SIGNALLED = 128
_ERROR = re.compile(r"^(?:\[rank\d+\]: *)?[\w.]*(?:Error|Exception)\b.*", re.MULTILINE)
"""A line of a traceback that names the error, as torch's processes print it."""
LOST_TO_RAY = ("ActorDiedError", "ActorUnavailableError", "NodeDiedError", "WorkerCrashedError", "LocalRayletDiedError")
"""The same by Ray 2.60: its classes (`ray.exceptions`) for processes and nodes that it has lost."""
_SHOWN_LINES = 12
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|DefaultCPUAllocator: can't allocate memory")


def _is_effect(text: str) -> bool:
    """Return True if all errors in it are of processes that lost another one."""
    errors = _ERROR.findall(text)
    return bool(errors) and all(any(words in error for words in (*LOST_PEER_WORDS, *LOST_TO_RAY)) for error in errors)


def run(stage: StageDir) -> None:
    """Have the engine train to the target step, and publish what it made."""
    if rank_of_process():
        run_beside(stage)
        return
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

    @property
    def nodes(self) -> EngineNodes:
        """Return the nodes that it runs on, of which this is the first."""
        return EngineNodes(self.work)

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
        with self._judges(handover) as judges:
            self._compute(rendered, data, 0 if checkpoint is None else checkpoint.step, judges)
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
            num_nodes=driven_nodes() or self.nodes.count,
            on_ray=driven_nodes() > 0,
            placement=placement_of(read_execution(self.stage.path)),
        )
        rendered = render(handover)
        if handover.starts_ray:
            rendered = replace(rendered, command=(*AT_ITS_NODE, *rendered.command))
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

    @contextlib.contextmanager
    def _judges(self, handover: Handover) -> Iterator[JudgeService | None]:
        """The judges of a list of rewards, where the engine's reward function finds them; None where it has none."""
        if not self.stage.job.inputs.get(JUDGE):
            yield None
            return
        spec = handover.stage_as(PpoStage)
        key, calls = client_key(self.work), capabilities(spec.engine).rewards
        drops = calls is not None and calls.drops_failed
        text, host = key.read_text(encoding="utf-8"), self.nodes.host
        with serving_judges(self.setup, spec, text, host=host, drops_failed=drops) as (judges, url):
            durable.write_json(self.work / JUDGES_FILE, {"url": url, "key": str(key)})
            yield judges

    def _compute(self, rendered: RenderedRun, data: DataFiles, first_step: int, judges: JudgeService | None) -> None:
        """Run the engine to its end; raise unless that end is the target."""
        log, nodes = self.work / LOG, self.nodes
        pump = LogPump(log)
        scores = self._scores(first_step, judges)
        process = start_engine(self.stage, nodes.begin(rendered.command, rendered.environment), log=log, nodes=nodes)
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
            nodes=nodes,
            judges=judges,
            scores=scores,
        )
        try:
            code = follower.run()
        finally:
            process.end()
        own = EngineEnd(code=code, last_lines=pump.last_lines(LAST_LINES), ended_by=follower.ended_by)
        nodes.tell(own)
        take_over(self.stage, self.adapter, self.work)
        if judges is not None:
            judges.check()
        if scores is not None:
            scores.check(follower.last_step)
        self._check_end(own, follower, data.target_steps)
        if judges is not None:
            judges.confirm()

    def _scores(self, first_step: int, judges: JudgeService | None) -> RolloutScores | None:
        """The reader of what rewards.py writes of every answer; None where the engine is given no such file."""
        job = self.stage.job
        calls = capabilities(job.spec.engine).rewards
        if calls is None or not getattr(job.spec, "rewards", ()):
            return None
        spec = job.spec_as(PpoStage)
        listed = listed_rewards(spec, calls)
        if not listed:
            return None
        directory = self.work / SCORES
        durable.make_dir(directory)
        return RolloutScores(
            spec=spec,
            directory=self.stage.path,
            files=ScoreFiles(directory, spec.samples_per_prompt),
            names=tuple(item.name for item in listed),
            first_step=first_step,
            spent=dict if judges is None else judges.spent,
        )

    def _check_end(self, own: EngineEnd, follower: Follower, target: int) -> None:
        reached = self.adapter.final_step(self.work)
        if own.code == 0 and reached == target:
            return
        saved = max((position.step for position in self.stage.checkpoints.positions()), default=0)
        if follower.stopping:
            raise InterruptedRunError(f"stopped after the checkpoint of step {saved} of {target}")
        title = handover_engine(self.stage.job.spec.engine).title
        if own.code == 0:
            at = "no weights of a known step" if reached is None else f"the weights of step {reached}"
            raise StageError(
                f"{title} ended with exit code 0 and left {at}; {target} steps were asked for, it logged "
                f"{follower.last_step}\n{own.last_lines}"
            )
        self._raise_cause(title, own, follower.nodes, at=f"at step {follower.last_step} of {target}")

    def _raise_cause(self, title: str, own: EngineEnd, nodes: EngineNodes, *, at: str) -> None:
        """Raise what the engine has failed of, on whichever node that was."""
        ends = nodes.all_ends(own)
        failed = {node: end for node, end in ends.items() if end.code and not end.ended_by}
        where = {node: f" on node {node}" if nodes.count > 1 else "" for node in range(nodes.count)}
        for end in failed.values():
            for line in reversed(end.last_lines.splitlines()):
                if _OUT_OF_MEMORY.search(line):
                    raise MemoryError(line)
        if silent := [node for node in where if node not in ends]:
            end_as_lost(self.stage, f"{title} was lost{where[silent[0]]}")
        for node, end in failed.items():
            by_torchrun = BY_TORCHRUN.search(end.last_lines)
            number = -int(by_torchrun[1]) if by_torchrun else end.code - SIGNALLED
            if number > 0:
                end_as_lost(self.stage, f"{title} was killed by signal {number}{where[node]}")
        own_faults = [node for node, end in failed.items() if not _is_effect(end.last_lines)]
        if (nodes.count > 1 or driven_nodes()) and failed and not own_faults:
            end_as_lost(self.stage, f"{title} lost the connection between its nodes {at}")
        node = next(iter(own_faults), nodes.node)
        tail = "\n".join(ends[node].last_lines.splitlines()[-_SHOWN_LINES:])
        raise StageError(f"{title} ended with exit code {ends[node].code}{where[node]} {at}\n{tail}")

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
