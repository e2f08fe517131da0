"""A stage of GRPO for prime-rl: one file of its entry `rl`, and what that file names.

Trainer, orchestrator and vLLM are processes of one node. Answers are drawn ahead of training, at most
`max_off_policy_steps` versions old; the orchestrator gives each its score less its group's mean, and the trainer asks a
loss that the file names: Charter's, since prime-rl's own bounds probabilities and not ratios (DPPO). Rewards are those
of a taskset of verifiers, which is written beside it.

Read in packages/prime-rl-configs (rl.py, orchestrator.py, trainer.py, inference.py) and src/prime_rl of prime-rl:
trainer/rl/loss.py and train.py (losses are divided by all tokens of a batch), orchestrator/algo/grpo.py and max_rl.py,
orchestrator/train_sink.py and dispatcher.py (which answers are dropped), trainer/scheduler.py, trainer/model.py.
"""

import json
from collections.abc import Mapping

from charter.engines.common.adapter import ROW
from charter.engines.common.formulas import name_formulas
from charter.engines.common.mapping import FieldMapper, Sheet, without_value_model
from charter.engines.common.rendered import RenderedRun, Resume
from charter.engines.common.request import Handover, RolesTogether
from charter.engines.common.reward_file import map_rewards, unlimited
from charter.engines.prime_rl.capabilities import CAPABILITIES, COMMIT, VERSION
from charter.errors import Problem
from charter.spec.layout import WHOLE_BITS, Recompute, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import DPPO_ANCHOR, Environment
from charter.spec.stage_base import FP8

FILE, ENTRY_FILE = "rl.yaml", "run_rl.py"
TASKSET, LOSS, NAME_FILE, OWN_TASKSET = "charter_taskset", "charter_loss", "charter_taskset_name", "own_taskset"
"""Modules beside the file."""
RUN = "run"
"""Directory of everything that prime-rl writes."""
TRAINER, MODEL, VLLM, ORCHESTRATOR = "trainer", "trainer.model", "inference.vllm", "orchestrator"

FURTHER: Mapping[str, tuple[object, ...]] = {
    "surrogate": ("cispo", "dppo"),
    "mismatch": (),
    "asynchrony": (),
    "max_age": (),
}
"""Options with more values than the usual ones, or with reasons of its own."""
ESTIMATORS = {"none": "grpo", "mean": "max_rl"}
"""`scale_advantages` of grpo -> its algorithm."""


def rl_sheet(mapper: FieldMapper, stage: PpoStage) -> Sheet:
    """`rl @ rl.yaml`, with the mapping of every field."""
    sheet = Sheet(mapper, FILE)
    rewards = map_rewards(mapper, stage, CAPABILITIES, "")
    sheet.files |= rewards.files
    name_formulas(mapper, stage)
    mapper.refuse_native_rewards(FURTHER)
    _run(sheet, stage)
    _machine(sheet)
    _model(sheet, stage)
    _layout(sheet, stage)
    _optimizer(sheet, stage)
    _schedule(sheet, stage)
    _estimator(sheet, stage)
    _loss(sheet, stage)
    _asynchrony(sheet, stage)
    _sampling(sheet, stage)
    _source(sheet, stage)
    _absent(sheet, stage)
    return sheet


def _run(sheet: Sheet, stage: PpoStage) -> None:
    handover = sheet.mapper.handover
    sheet.put("run", {"name": handover.name, "dir": RUN})
    sheet.put("output_dir", handover.paths.work)
    steps: dict[str, object] = {"max_steps": handover.target_steps}
    sheet.computed("stage.episodes", steps, "in rollouts: episodes / rollout_batch")
    sheet.as_is("stage.checkpoint_every", "ckpt.interval", note="the last step is always saved")
    sheet.put("ckpt.keep_last", handover.keep_last + 1)
    sheet.put("weight_broadcast.type", "filesystem")
    sheet.as_is("seed", f"{VLLM}.seed", note="nothing else of it takes one: tasks come in the file's order")
    batch = stage.rollout_batch
    if stage.minibatch != batch:
        reason = f"its optimizer steps once for each batch of answers, so minibatch must be rollout_batch ({batch})"
        sheet.mapper.refuse("stage.minibatch", reason, f"minibatch: {batch}")
    else:
        sheet.as_is("stage.minibatch", f"{ORCHESTRATOR}.batch_size")
    if batch % stage.samples_per_prompt:
        sheet.mapper.refuse("stage.rollout_batch", "samples_per_prompt must divide it")
    else:
        sheet.as_is("stage.rollout_batch", f"{ORCHESTRATOR}.batch_size")
    sheet.as_is("stage.samples_per_prompt", f"{ORCHESTRATOR}.group_size")
    sheet.mapper.same("stage.ppo_epochs", 1, "it goes over a batch once")


def _machine(sheet: Sheet) -> None:
    """One node, divided between the trainer and vLLM."""
    handover, layout = sheet.mapper.handover, sheet.mapper.handover.layout
    path = f"pipeline.{handover.name}.resources"
    groups = handover.placement.groups if handover.placement is not None else ()
    generating = sum(group.num_accelerators for group in groups if "generate" in group.roles)
    tensor = handover.placement.generator_tensor if handover.placement is not None else 1
    for message, hint in _problems(handover, groups, generating, tensor):
        sheet.mapper.problems.append(Problem(path=path, message=f"prime-rl {message}", hint=hint))
    sheet.put("deployment", {
        "type": "single_node",
        "gpus_per_node": handover.per_node,
        "num_train_gpus": layout.num_accelerators,
        "num_infer_gpus": generating,
    })  # fmt: skip
    note = "accelerators of the trainer: prime-rl shards the model over all of them"
    sheet.mapper.to("layout.data", f"{FILE}: deployment.num_train_gpus", how="computed", note=note)
    sheet.put(f"{VLLM}.tensor_parallel_size", tensor)


def _problems(
    handover: Handover, groups: tuple[RolesTogether, ...], generating: int, tensor: int
) -> tuple[tuple[str, str], ...]:
    used = handover.layout.num_accelerators + generating
    if handover.is_cpu:
        return (("needs accelerators", "take engine native or trl"),)
    if handover.num_nodes > 1:
        message = f"is rendered for one node's accelerators, not for {handover.num_nodes} nodes: there its entry is a "
        return ((f"{message}submitter of Slurm jobs of its own", "max_nodes: 1"),)
    if not groups or not generating:
        return (("generates on accelerators of its own, and the placement has none for it", "plan it for prime_rl"),)
    if used != handover.num_accelerators:
        return ((f"uses {used} accelerators, the machine has {handover.num_accelerators}", "plan it again"),)
    if generating % tensor:
        return ((f"cannot divide {generating} accelerators into generators of {tensor}", "another tensor size"),)
    return ()


def _model(sheet: Sheet, stage: PpoStage) -> None:
    mapper = sheet.mapper
    path = mapper.handover.paths.models["policy"]
    sheet.computed("stage.policy", {"model.name": path}, "where its weights are")
    sheet.put(f"{ORCHESTRATOR}.renderer.name", "default")
    for name in ("tool_call_parser", "reasoning_parser"):
        sheet.put(f"{VLLM}.{name}", None)
    if stage.dtype == "bf16":
        master = {f"{MODEL}.optimization_dtype": "float32", f"{MODEL}.reduce_dtype": "float32"}
        keys: dict[str, object] = {**master, f"{VLLM}.dtype": "bfloat16"}
        sheet.computed("stage.dtype", keys, "computed in bf16; weights, sums and optimizer are kept in fp32")
    else:
        reason = CAPABILITIES.without_fp8 if stage.dtype == FP8 else "its FSDP gathers parameters in bfloat16"
        mapper.refuse("stage.dtype", reason, "dtype: bf16")
    _kernels(sheet, stage)
    adapter = stage.adapter
    if adapter is not None and adapter.base_bits != WHOLE_BITS:
        mapper.refuse("stage.adapter", "it has LoRA, not a base in 4 bits", "base_bits: 16")
    elif adapter is None:
        sheet.computed("stage.adapter", {f"{MODEL}.lora": None}, "all weights are trained")
    else:
        lora = {"rank": adapter.rank, "alpha": float(adapter.alpha), "dropout": 0.0}
        sheet.computed("stage.adapter", {f"{MODEL}.lora": lora}, "LoRA on all linear layers of a block")
    mapper.same("stage.guard", None, "it has no guard against divergence; Charter's engine would stop there")


def _kernels(sheet: Sheet, stage: PpoStage) -> None:
    resources = stage.resources
    attention = (resources.attention if resources is not None else None) or "auto"
    if attention in ("auto", "flash_attention_2"):
        sheet.put(f"{MODEL}.attn", attention)
    else:
        sheet.mapper.refuse("stage.resources", f"attention {attention} is none of its flash kernels", "attention: auto")
    sheet.put(f"{MODEL}.compile", {} if resources is not None and resources.compile else None)


NO_DEGREE = {
    "tensor": "it has no tensor parallelism",
    "pipeline": "it has no pipeline",
    "interleave": "there is no pipeline",
    "context": "its context parallelism belongs to its own model classes, and Charter renders any architecture",
    "expert": "its expert parallelism is not rendered",
    "replicas": "it is rendered for one node, over which everything is sharded",
}


def _layout(sheet: Sheet, stage: PpoStage) -> None:
    mapper, layout = sheet.mapper, sheet.mapper.handover.layout
    for name, why in NO_DEGREE.items():
        mapper.same(f"layout.{name}", 1, why)
    mapper.same("layout.sequence_parallel", False, "there is no tensor parallelism")
    sheet.put(f"{MODEL}.ep", 1)
    if layout.zero is ZeroStage.PARAMETERS or (layout.zero is ZeroStage.NONE and layout.data == 1):
        sheet.computed("layout.zero", {f"{MODEL}.reshard_after_forward": True}, "FSDP2, resharded after each block")
    else:
        mapper.refuse("layout.zero", "it shards by FSDP2, and is rendered for ZeRO-3 only")
    if layout.recompute is Recompute.SELECTIVE:
        mapper.refuse("layout.recompute", "its selective mode names parts of its own model classes", "full, or none")
    else:
        on = {"mode": "full", "freq": 1} if layout.recompute is Recompute.FULL else None
        sheet.computed("layout.recompute", {f"{MODEL}.ac": on}, "full: every block, none: off")
    sheet.put(f"{MODEL}.ac_offloading", None)
    sheet.as_is("layout.offload_parameters", f"{MODEL}.fsdp_cpu_offload", note="parameters and optimizer")
    apart: dict[str, object] = {
        f"{MODEL}.optim_cpu_offload": layout.offload_optimizer and not layout.offload_parameters
    }
    sheet.computed("layout.offload_optimizer", apart, "off where the parameters take the optimizer along")
    longest = _longest(stage)
    rows: dict[str, object] = {"seq_len": layout.micro_batch * longest}
    sheet.computed("layout.micro_batch", rows, "a row of so many longest answers, into which shorter ones are packed")
    sheet.idle("layout.accumulation", "answers are packed into rows, and there are as many rows as that takes")


def _optimizer(sheet: Sheet, stage: PpoStage) -> None:
    optim = f"{TRAINER}.optim"
    if stage.optimizer == "adamw":
        sheet.computed("stage.optimizer", {f"{optim}.type": "adamw"}, "torch's AdamW with its epsilon of 1e-8")
    else:
        sheet.mapper.refuse("stage.optimizer", "it has no Adam with moments of 8 bits", "optimizer: adamw")
    sheet.as_is("stage.learning_rate", f"{optim}.lr")
    note = "it decays norms and biases too, Charter's engine does not"
    sheet.as_is("stage.weight_decay", f"{optim}.weight_decay", note=note)
    sheet.as_is("stage.beta1", f"{optim}.betas1")
    sheet.as_is("stage.beta2", f"{optim}.betas2")
    sheet.as_is("stage.gradient_clip", f"{optim}.max_norm")


def _schedule(sheet: Sheet, stage: PpoStage) -> None:
    """A warm-up begins at the smallest rate there, here at one part of it: about a step later."""
    mapper, target, place = sheet.mapper, sheet.mapper.handover.target_steps, f"{TRAINER}.scheduler"
    warmup, left = stage.warmup_steps, target - stage.warmup_steps
    is_constant = stage.schedule == "constant"
    floor = 0.0 if is_constant else stage.min_learning_rate_ratio * stage.learning_rate
    shapes: dict[str, dict[str, object]] = {
        "constant": {"type": "linear", "warmup_steps": warmup, "decay_steps": 0, "min_lr": 0.0},
        "linear": {"type": "linear", "warmup_steps": warmup, "decay_steps": left, "min_lr": floor},
        "cosine": {"type": "cosine", "warmup_steps": warmup, "min_lr": floor},
    }
    chosen: dict[str, object] = {"type": "constant"} if is_constant and not warmup else shapes[stage.schedule]
    note = "the same curve; a warm-up begins at the smallest rate, one step later than ours"
    sheet.computed("stage.schedule", {place: chosen}, note)
    if left < 1 and warmup:
        mapper.refuse("stage.warmup_steps", f"its warm-up has to end before the last of {target} steps")
    else:
        sheet.computed("stage.warmup_steps", {place: chosen}, note)
    if is_constant:
        sheet.idle("stage.min_learning_rate_ratio", "a constant rate has no floor")
    else:
        sheet.computed("stage.min_learning_rate_ratio", {place: chosen}, "the floor as a rate: ratio x learning_rate")


def _estimator(sheet: Sheet, stage: PpoStage) -> None:
    mapper = sheet.mapper
    if stage.estimator == "grpo":
        algorithm: dict[str, object] = {f"{ORCHESTRATOR}.algo.type": ESTIMATORS.get(stage.scale_advantages, "grpo")}
        sheet.computed("stage.estimator", algorithm, "the score less the mean of its group")
    else:
        reason = "its algorithms compare an answer with the mean of its whole group, and hold no value model"
        mapper.refuse("stage.estimator", reason, "estimator: grpo, scale_advantages: none or mean")
        algorithm = {}
    if stage.scale_advantages in ESTIMATORS and algorithm:
        sheet.computed("stage.scale_advantages", algorithm, "none: grpo; mean: max_rl")
    elif stage.estimator == "grpo":
        reason = "it divides by no deviation: grpo leaves the difference, max_rl divides by the group's mean"
        mapper.refuse("stage.scale_advantages", reason, "scale_advantages: none, or mean")
    else:
        sheet.idle("stage.scale_advantages", "it belongs to grpo")
    sheet.put(f"{ORCHESTRATOR}.train.filter_zero_advantages", False)
    mapper.same("stage.kl_coefficient", 0.0, "it holds no reference model")
    sheet.idle("stage.kl_estimator", "there is no penalty")
    if stage.estimator == "grpo":
        sheet.idle("stage.whiten_advantages", "grpo compares within groups, here and there")
    else:
        mapper.same("stage.whiten_advantages", False, "it does not whiten over the batch")


def _loss(sheet: Sheet, stage: PpoStage) -> None:
    """A loss of the export's own, or prime-rl's (`dppo`), which it sums and divides by all tokens of the batch."""
    mapper, place = sheet.mapper, f"{TRAINER}.loss"
    high = stage.clip_ratio if stage.clip_ratio_high is None else stage.clip_ratio_high
    if stage.surrogate == "dppo":
        sheet.put(place, {"adv_tau": 1.0, "kl_tau": DPPO_ANCHOR})
        note = "how far the probability of a token may fall below the generator's"
        sheet.computed("stage.clip_ratio", {f"{place}.dppo_mask_low": stage.clip_ratio}, note)
        sheet.computed("stage.clip_ratio_high", {f"{place}.dppo_mask_high": high}, "likewise above it")
        mapper.same("stage.dual_clip", None, "it bounds PPO's clip of token ratios")
        sheet.computed("stage.surrogate", {f"{place}.type": "default"}, "prime-rl's own loss")
    else:
        kwargs = f"{place}.kwargs"
        sheet.put(place, {"type": "custom", "import_path": f"{LOSS}.loss", "kwargs": {}})
        note = "its own loss bounds differences of probabilities; this one is in charter_loss.py"
        sheet.computed("stage.clip_ratio", {f"{kwargs}.low": stage.clip_ratio}, note)
        sheet.computed("stage.clip_ratio_high", {f"{kwargs}.high": high}, "clip_ratio where none is given")
        sheet.as_is("stage.dual_clip", f"{kwargs}.dual_clip")
        sheet.as_is("stage.surrogate", f"{kwargs}.surrogate", note="by charter_loss.py")
        sheet.files[f"{LOSS}.py"] = LOSS_TEXT
    if stage.loss_aggregation == "token":
        mapper.same("stage.loss_aggregation", "token", "the trainer divides by all tokens of a batch")
    else:
        mapper.refuse(
            "stage.loss_aggregation", "the trainer divides by all tokens of a batch", "loss_aggregation: token"
        )
    mapper.same("stage.entropy_weight", 0.0, "a loss is not told the entropy")
    for name in ("mismatch_clip", "mismatch"):
        reason = "its ratio is to the generator's own probabilities, so there is nothing left to correct"
        mapper.same(f"stage.{name}", None, reason)


def _asynchrony(sheet: Sheet, stage: PpoStage) -> None:
    """The oldest token of an answer is at most so many versions older than the weights that learn."""
    mapper = sheet.mapper
    if stage.asynchrony == "in_flight":
        note = (
            "the oldest token's version counts, and weights change while answers are drawn; an answer past the bound "
            "is dropped with its group, so most are younger, and how old they were is off_policy/mean of its metrics"
        )
        bound: dict[str, object] = {f"{ORCHESTRATOR}.max_off_policy_steps": stage.max_age}
        for name in ("asynchrony", "max_age"):
            sheet.computed(f"stage.{name}", bound, note)
        return
    reason = "it always draws ahead and changes weights while answers are drawn"
    mapper.refuse("stage.asynchrony", reason, "asynchrony: in_flight, max_age: 1, which its bound of 1 is")
    sheet.idle("stage.max_age", "it belongs to asynchrony: in_flight")


def _sampling(sheet: Sheet, stage: PpoStage) -> None:
    mapper, place = sheet.mapper, f"{ORCHESTRATOR}.train.sampling"
    sheet.as_is("stage.temperature", f"{place}.temperature")
    mapper.same("stage.top_p", 1.0, "its training samples with top_p 1 (TrainSamplingConfig)")
    longest = {f"{VLLM}.max_model_len": _longest(stage)}
    new: dict[str, object] = {f"{place}.max_completion_tokens": stage.max_new_tokens, **longest}
    sheet.computed("stage.max_new_tokens", new, "and prompt and answer together")
    sheet.computed("stage.max_prompt_tokens", dict(longest), "prompt and answer together: vLLM refuses longer prompts")
    mapper.same("stage.min_new_tokens", 0, "the client that it samples by passes no min_tokens")
    sheet.computed("stage.generator", {f"{VLLM}.gpu_memory_utilization": MEMORY_SHARE}, "vLLM whichever is named")
    mapper.charter("stage.mean_new_tokens", "read by the planner alone")
    mapper.same("stage.checkpoint_epochs", False, "it saves between steps only")


def _longest(stage: PpoStage) -> int:
    """Return the tokens of the longest conversation: a prompt, the policy's turns, and the replies between them."""
    replies = 0 if stage.environment is None else stage.environment.most_observed_tokens
    return stage.max_prompt_tokens + stage.max_new_tokens + replies


MEMORY_SHARE = 0.9
"""Of an accelerator for vLLM, which has it alone; prime-rl's own default."""


def _source(sheet: Sheet, stage: PpoStage) -> None:
    """One taskset: prompts and rewards of one turn, or the rows' tasks of a taskset that is there."""
    handover, environment = sheet.mapper.handover, stage.environment
    agent: dict[str, object] = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    env: dict[str, object] = {"taskset": {"id": TASKSET}, "agent": agent}
    text = TASKSET_TEXT.replace(AT_ONCE, IN_A_THREAD) if stage.judges else TASKSET_TEXT
    if environment is not None and environment.taskset is not None:
        env, text = _played(sheet, stage, environment, agent), TASKS_TEXT
    sheet.put(f"{ORCHESTRATOR}.train.source", [{"name": handover.name, "env": env}])
    sheet.files[f"{TASKSET}.py"] = text.replace("PATH", json.dumps(handover.paths.data["prompts"]))
    sheet.files[ENTRY_FILE] = ENTRY_TEXT
    note = "one file of JSON lines in Charter's order, gone through in circles: dropped answers cost prompts"
    sheet.mapper.to("stage.prompts", f"{TASKSET}.py: ROWS", how="computed", note=note)
    if stage.rewards:
        sheet.idle("stage.reward", "there is a list of rewards")
    else:
        hint = "rewards that are functions"
        sheet.mapper.refuse("stage.reward", "it scores by the functions of a taskset, and serves no reward model", hint)


def _played(sheet: Sheet, stage: PpoStage, environment: Environment, agent: Mapping[str, object]) -> dict[str, object]:
    """Return the environment of a taskset of verifiers: the stage's arguments, and what bounds its one agent."""
    given = dict(environment.arguments or {})
    taskset = str(environment.taskset)
    if taskset.endswith(".py"):
        sheet.files[f"{OWN_TASKSET}.py"] = sheet.mapper.handover.sources[taskset]
        taskset = OWN_TASKSET
    sheet.files[f"{NAME_FILE}.py"] = f'"""Taskset of verifiers whose tasks the rows have."""\n\nID = {taskset!r}\n'
    # A seat of another name than verifiers' own is known by what the stage says of it.
    seat = next((name for name in given if name not in ("taskset", "timeout", "retries", "id")), "agent")
    limits = {"max_turns": environment.max_turns, "max_output_tokens": stage.max_new_tokens}
    note = (
        "the tasks of the rows in Charter's order; a reply is not cut to observation_tokens, and nothing limits the "
        "environment's time or memory there"
    )
    sheet.mapper.to("stage.environment", f"{FILE}: {ORCHESTRATOR}.train.source", how="computed", note=note)
    return {
        **given,
        "taskset": {**given.get("taskset", {}), "id": TASKSET},
        seat: {**given.get(seat, {}), **agent, **limits},
    }


def _absent(sheet: Sheet, stage: PpoStage) -> None:
    same = sheet.mapper.same
    same("stage.reward_clip", None, "scores are taken as they are")
    same("stage.missing_end_penalty", None, "it does not look whether an answer has ended")
    same("stage.kl_target", None, "there is no penalty")
    losses = "its algorithms mix in no language modelling of rows of a file"
    without_value_model(sheet, algorithms="grpo has", once="a batch is gone over once", losses=losses)
    sheet.idle("stage.kl_horizon", "it belongs to kl_target")


AT_ONCE = "return rewards.rewards_of(trace.last_reply, self.data.carried, tokens=trace.num_output_tokens)[0]"
IN_A_THREAD = """import asyncio

        answer, carried, tokens = trace.last_reply, self.data.carried, trace.num_output_tokens
        return (await asyncio.to_thread(rewards.rewards_of, answer, carried, tokens=tokens))[0]"""
"""The same where a judge is asked: other answers are drawn and rated meanwhile."""
TASKSET_TEXT = f'''"""Prompts and rewards of the stage as a taskset of verifiers: one turn, rated by rewards.py."""

import json
import pathlib

import verifiers.v1 as vf

import rewards

__all__ = ["CharterTaskset"]
ROWS = PATH


class Data(vf.TaskData):
    carried: str


class CharterTask(vf.Task[Data]):
    @vf.reward
    async def total(self, trace) -> float:
        {AT_ONCE}


class CharterTaskset(vf.Taskset[CharterTask, vf.TasksetConfig]):
    def load(self):
        with pathlib.Path(ROWS).open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                yield CharterTask(Data(prompt=row["prompt"], carried=row["{ROW}"]), self.config.task)
'''
TASKS_TEXT = f'''"""The tasks of Charter's rows, in its order: a taskset of verifiers plays and rates them."""

import json
import pathlib

from verifiers.v1.utils import loaders

import charter_taskset_name

module = loaders.import_taskset(charter_taskset_name.ID)
played = loaders.taskset_class(charter_taskset_name.ID)
ROWS = PATH


class CharterTaskset(played):
    def load(self):
        kind = type(self).task_type()
        with pathlib.Path(ROWS).open(encoding="utf-8") as lines:
            for line in lines:
                task = json.loads(json.loads(line)["{ROW}"])["row"]["task"]
                yield kind(kind.data_type().model_validate(task), self.config.task)


__all__ = ["CharterTaskset"]
for name in getattr(module, "__all__", ()):
    if getattr(module, name) is not played:
        globals()[name] = getattr(module, name)
        __all__.append(name)
'''
LOSS_TEXT = '''"""Charter's loss of one answer for prime-rl, which divides the sum by all tokens of the batch.

The ratio is of the weights that learn to those that drew each token, as the generator said.
"""

import torch
from prime_rl.trainer.rl.loss import LossOutputs


def loss(inputs, *, low, high, dual_clip, surrogate):
    mask, new = inputs.loss_mask, inputs.trainer_logprobs
    zero = torch.zeros_like(new)
    ratio = torch.exp(torch.where(mask, new - inputs.inference_logprobs, zero))
    held = ratio.clamp(1 - low, 1 + high)
    advantage = inputs.advantages
    if surrogate == "cispo":
        terms = -held.detach() * advantage * new
    else:
        terms = -torch.minimum(ratio * advantage, held * advantage)
        if dual_clip is not None:
            terms = torch.where(advantage < 0, torch.minimum(terms, -dual_clip * advantage), terms)
    if inputs.loss_weights is not None:
        terms = terms * inputs.loss_weights
    outside = torch.where(mask, (ratio != held).float(), zero).sum() / mask.sum().clamp_min(1)
    return LossOutputs(loss=torch.where(mask, terms, zero).sum(), metrics={"clip_fraction": outside.detach()})
'''
ENTRY_TEXT = f'''"""prime-rl's `rl`, from the newest whole checkpoint of the run directory, or from the beginning."""

import os
import pathlib
import sys

work = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(work))
os.environ["PYTHONPATH"] = os.pathsep.join([str(work), *filter(None, [os.environ.get("PYTHONPATH")])])
# Its processes are started by their names.
os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])


def newest():
    steps = work.joinpath("{RUN}", "checkpoints").glob("step_*")
    whole = (path for path in steps if (path / "trainer" / ".metadata").exists())
    whole = (path for path in whole if (path / "orchestrator" / "progress.pt").exists())
    return max((int(path.name.removeprefix("step_")) for path in whole), default=None)


from prime_rl.entrypoints.rl import main

step = newest()
sys.argv += ["--clean"] if step is None else ["--resume.step", str(step)]
main()
'''
CALLS = CAPABILITIES.rewards
assert CALLS is not None
RESUME = Resume(
    guarantee="best_effort",
    reason=(
        "weights, optimizer, schedule and the place in the prompts come back; answers that were being drawn or waited "
        "are lost with their prompts, vLLM draws anew, and no random state is saved"
    ),
    source=f"prime-rl {VERSION} ({COMMIT[:7]}): trainer/ckpt.py, orchestrator/ckpt.py, orchestrator/train_source.py",
)
NOTES = (
    "run_rl.py goes on from the newest whole checkpoint below run/; where there is none it empties run/ and begins",
    "rl --dry-run: `python run_rl.py @ rl.yaml --dry-run` writes the configurations of all processes to run/configs",
    "final weights are run/broadcasts/step_N, which the trainer writes for vLLM after every step; of LoRA the adapter",
    unlimited(CALLS.failed),
)


def render_prime_rl(handover: Handover) -> RenderedRun:
    """The stage as prime-rl's configuration; a `SpecError` holds every field that it cannot express."""
    mapper = FieldMapper(handover)
    sheet = rl_sheet(mapper, handover.stage_as(PpoStage))
    rows = mapper.finish()
    work = handover.paths.work
    return RenderedRun(
        files={FILE: sheet.text(), **sheet.files},
        command=("python", f"{work}/{ENTRY_FILE}", "@", f"{work}/{FILE}"),
        mapping=rows,
        resume=RESUME,
        formulas=mapper.formulas,
        notes=NOTES,
    )
