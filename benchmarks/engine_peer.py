"""Charter's side of `engine_vs_trl.py`: the tasks of its stages on the fixed work of `peer_workload.py`.

python engine_peer.py STAGE STEPS SCALE
"""

import atexit
import inspect
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

import peer_workload as work
import torch

from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.data.dataset import Pair, Turn
from charter.models.engine_layout import CPU_VALUES
from charter.models.language_model import LanguageModel
from charter.models.parallel import parallelize
from charter.models.preference import PreferenceModel, ScalarModel
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import REWARD_SOURCES, Reward
from charter.spec.stage import PreferenceModelStage, PretrainStage
from charter.train.encoded_pairs import EncodedPairs
from charter.train.models import trained_model
from charter.train.optimizers import make_optimizer
from charter.train.ppo import ppo_task
from charter.train.preference_model import pair_loss
from charter.train.pretrain import language_loss
from charter.train.schedule import batch_rows
from charter.train.setup import Setup, set_up
from charter.train.supervised import SupervisedTask

STEPS_IN = work.StepByStep()
NEVER = 10**9
COMMON = {
    "schedule": "linear",
    "min_learning_rate_ratio": 0.0,
    "beta1": work.BETAS[0],
    "beta2": work.BETAS[1],
    "dtype": "fp32",
    "checkpoint_every": NEVER,
}
SUPERVISED = COMMON | {"learning_rate": work.RATE, "gradient_clip": work.GRADIENT_CLIP}


def stage_of(spec, inputs=None):
    """A stage directory with its job, as the pipeline would write it."""
    path = Path(tempfile.mkdtemp(prefix="engine-peer-"))
    job = Job(
        run="benchmark",
        stage=spec.kind,
        kind=spec.kind,
        fingerprint="0" * 64,
        seed=0,
        spec=spec,
        inputs=inputs or {},
        constitution=None,
        frozen={"threads": 1, "device": "cpu", **CPU_VALUES},
        keep_last=1,
    )
    write_job(path, job)
    return StageDir(path)


def made_by(kind, path, role):
    """An input that another stage made."""
    return (JobInput(name=role, role=role, source="stage", path=str(path), fingerprint="0" * 64, stage_kind=kind),)


def placed(setup: Setup, rows, batch, stream="order"):
    """The rows laid out so that step by step the stage reads them in the order given."""
    placed_rows = [None] * len(rows)
    for step in range(len(rows) // batch):
        numbers = batch_rows(step, rows=len(rows), batch=batch, seed=setup.seed(stream))
        for place, number in enumerate(numbers):
            placed_rows[number] = rows[step * batch + place]
    return placed_rows


def watched(task):
    """The task, telling of every step."""
    run_part, is_first = task.run_part, [True]

    def run_part_and_tell(at):
        if is_first:
            is_first.clear()
            STEPS_IN.begin()
        report = run_part(at)
        if report is not None:
            STEPS_IN.done(dict(report.metrics))
        return report

    task.run_part = run_part_and_tell
    return task


def language_model(scale):
    """The workload's language model as the engine holds it."""
    return LanguageModel(work.causal_model(scale), work.tokenizer())


def preference(scale, seq_len):
    """The workload's preference model as the engine holds it: the same body, the same head."""
    theirs, ours = work.scalar_model(scale), language_model(scale)
    ours.model.model.load_state_dict(theirs.model.state_dict())
    scalar = ScalarModel(ours)
    with torch.no_grad():
        scalar.head.weight.copy_(theirs.score.weight)
    settings = {"pooling": "last", "context": "full", "seq_len": seq_len, "score_mean": 0.0, "score_deviation": 1.0}
    return PreferenceModel(scalar, ours, settings)


def sft(steps, scale):
    """Every token is counted, as in TRL without a template: rows of text."""
    spec = PretrainStage(
        init="m", data=("d",), steps=steps, global_batch=work.SFT_ROWS, seq_len=work.SEQUENCE, **SUPERVISED
    )
    setup = set_up(stage_of(spec))
    rows = torch.tensor(placed(setup, work.sft_rows(work.SFT_ROWS * steps), work.SFT_ROWS))
    trained = trained_model(setup, language_model(scale), spec)
    optimizer = make_optimizer([(trained.parallel.trained_parameters(), spec.learning_rate)], spec)

    def loss_of(numbers, step):
        ids = rows[numbers]
        counted = torch.ones_like(ids, dtype=torch.bool)
        return language_loss(trained.parallel.call, ids, counted, dtype=spec.dtype, device=setup.device)

    return SupervisedTask(setup, trained.parallel, optimizer, spec, len(rows), steps, loss_of)


def preference_model(steps, scale, *, same_length):
    """Pairs of texts."""
    spec = PreferenceModelStage(
        init="m", data=("d",), steps=steps, global_batch=work.PAIRS, seq_len=2 * work.PAIR_TOKENS, **SUPERVISED
    )
    setup = set_up(stage_of(spec))
    batch = placed(setup, work.pairs(work.PAIRS * steps, same_length=same_length), work.PAIRS)
    texts = [
        Pair(
            str(number),
            (Turn("user", work.text(pair.chosen[: pair.shared])),),
            work.text(pair.chosen[pair.shared :]),
            work.text(pair.rejected[pair.shared :]),
        )
        for number, pair in enumerate(batch)
    ]
    model = preference(scale, spec.seq_len)
    pairs = EncodedPairs(model, texts)
    parallel = parallelize(model.scalar, setup.layout, setup.ranks, dtype=spec.dtype)
    optimizer = make_optimizer([(parallel.trained_parameters(), spec.learning_rate)], spec)

    def loss_of(numbers, step):
        return pair_loss(model, [pairs[number] for number in numbers], spec, call=parallel.call)

    return SupervisedTask(setup, parallel, optimizer, spec, len(pairs), steps, loss_of)


def ppo(steps, scale):
    """The stage's own task, its models and prompts read from disk."""
    folder = Path(tempfile.mkdtemp(prefix="engine-peer-made-"))
    language_model(scale).save(folder / "policy" / "model")
    preference(scale, work.PROMPT_TOKENS + work.ANSWER_TOKENS).save(folder / "reward" / "model")
    (folder / "prompts").mkdir()
    spec = PpoStage(
        policy="m",
        reward="r",
        prompts=("p",),
        episodes=steps * work.ANSWERS,
        rollout_batch=work.ANSWERS,
        minibatch=work.ANSWERS,
        ppo_epochs=work.EPOCHS,
        max_new_tokens=work.ANSWER_TOKENS,
        min_new_tokens=work.ANSWER_TOKENS,
        max_prompt_tokens=work.PROMPT_TOKENS,
        learning_rate=work.PPO_RATE,
        value_learning_rate=work.PPO_RATE,
        value_loss_weight=work.VALUE_WEIGHT,
        kl_coefficient=work.KL_COEFFICIENT,
        clip_ratio=work.CLIP,
        value_clip=work.CLIP,
        gae_lambda=work.GAE_LAMBDA,
        gradient_clip=float(NEVER),
        **COMMON,
    )
    inputs = {
        "policy": made_by("sft", folder / "policy", "policy"),
        "reward": made_by("preference_model", folder / "reward", "reward"),
        "prompts": made_by("critique", folder / "prompts", "prompts"),
    }
    stage = stage_of(spec, inputs)
    setup = set_up(stage)
    prompts = placed(setup, work.prompts(work.ANSWERS * steps), work.ANSWERS)
    lines = [{"id": str(number), "messages": _asked(ids)} for number, ids in enumerate(prompts)]
    (folder / "prompts" / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task, _ = ppo_task(setup)
    return task


def grpo(steps, scale):
    """The same with a function as the reward, and without reward model, reference and value model."""
    folder = Path(tempfile.mkdtemp(prefix="engine-peer-made-"))
    language_model(scale).save(folder / "policy" / "model")
    (folder / "prompts").mkdir()
    (folder / "even.py").write_text(inspect.getsource(work.even))
    spec = PpoStage(
        policy="m",
        prompts=("p",),
        rewards=(Reward(name="even", kind="function", call="even.py:even"),),
        estimator="grpo",
        samples_per_prompt=work.ANSWERS_TO_ONE,
        kl_coefficient=0.0,
        episodes=steps * work.ANSWERS,
        rollout_batch=work.ANSWERS,
        minibatch=work.ANSWERS,
        ppo_epochs=1,
        max_new_tokens=work.ANSWER_TOKENS,
        min_new_tokens=work.ANSWER_TOKENS,
        max_prompt_tokens=work.PROMPT_TOKENS,
        learning_rate=work.PPO_RATE,
        clip_ratio=work.CLIP,
        gradient_clip=work.GRADIENT_CLIP,
        **COMMON,
    )
    name = f"{REWARD_SOURCES} even.py"
    source = JobInput(name=name, role=REWARD_SOURCES, source="data", path=str(folder / "even.py"), fingerprint="0" * 64)
    inputs = {
        "policy": made_by("sft", folder / "policy", "policy"),
        "prompts": made_by("critique", folder / "prompts", "prompts"),
        REWARD_SOURCES: (source,),
    }
    setup = set_up(stage_of(spec, inputs))
    each = work.ANSWERS // work.ANSWERS_TO_ONE
    prompts = placed(setup, work.prompts(each * steps), each)
    lines = [{"id": str(number), "messages": _asked(ids)} for number, ids in enumerate(prompts)]
    (folder / "prompts" / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stack = ExitStack()
    task, _ = ppo_task(setup, stack)
    atexit.register(stack.close)
    return task


def _asked(ids):
    return [{"role": "user", "content": work.text(ids)}, {"role": "assistant", "content": work.text(ids[:1])}]


def main():
    """Run the stage that was asked for."""
    stage, steps, scale = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if stage == "sft":
        task = sft(steps, scale)
    elif stage in ("ppo", "grpo"):
        task = {"ppo": ppo, "grpo": grpo}[stage](steps, scale)
    else:
        task = preference_model(steps, scale, same_length=stage == "preference_model")
    watched(task).train()


if __name__ == "__main__":
    main()
