"""Run by the engine's own Python: what TRL, Accelerate and DeepSpeed say of rendered files.

Reads a JSON list of {"directory", "script", "command", "environment"}; prints one JSON list of answers: {"error"} or
{"trainer", "accelerate", "deepspeed"}, each what the engine's classes hold after reading. Where the machine has no
accelerator, `use_cpu` is turned on for the parser of TRL alone, which else refuses bf16.
"""

import contextlib
import importlib
import io
import json
import os
import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from transformers import get_scheduler
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

HERE = {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29511"}


def plain(value):
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else getattr(value, "__dict__", str(value))


def parsed(script, arguments):
    """The objects of the script's own parser; a key that it does not know is an error here."""
    parser = importlib.import_module(f"trl.scripts.{script}").make_parser()
    return parser.parse_args_and_config(args=arguments, fail_with_unknown_args=True)


def held(objects, key):
    owners = [item for item in objects if key in item.__dataclass_fields__]
    assert len(owners) == 1, f"{key} belongs to {[type(item).__name__ for item in owners]}"
    return plain(getattr(owners[0], key))


def trainer(directory, script):
    """What TRL holds: once from the file, once with every scalar as an argument, where argparse checks types too."""
    path = directory / f"{script}.yaml"
    settings = yaml.safe_load(path.read_text())
    shown = {} if torch.cuda.is_available() else {"use_cpu": True}
    scalars = {key: value for key, value in settings.items() if isinstance(value, (str, int, float, bool))} | shown
    arguments = [text for key, value in scalars.items() for text in (f"--{key}", str(value))]
    rest = path.with_suffix(".rest.yaml")
    rest.write_text(yaml.safe_dump({key: value for key, value in settings.items() if key not in scalars}))
    from_file = parsed(script, ["--config", str(path), *(["--use_cpu", "True"] if shown else [])])
    as_arguments = parsed(script, ["--config", str(rest), *arguments])
    found = {key: held(from_file, key) for key in settings}
    again = {key: held(as_arguments, key) for key in settings}
    assert found == again, {key: (found[key], again[key]) for key in found if found[key] != again[key]}
    if shown and "use_cpu" in settings:
        assert isinstance(settings["use_cpu"], bool)
        found["use_cpu"] = settings["use_cpu"]
    return found, next(item for item in from_file if hasattr(item, "per_device_train_batch_size"))


def rates(settings):
    """The learning rate of every update, by the schedule that the Trainer makes of its arguments."""
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=settings.learning_rate)
    scheduler = get_scheduler(
        settings.lr_scheduler_type,
        optimizer,
        num_warmup_steps=settings.get_warmup_steps(settings.max_steps),
        num_training_steps=settings.max_steps,
        scheduler_specific_kwargs=settings.lr_scheduler_kwargs,
    )
    found = []
    for _ in range(settings.max_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def launched(command):
    """Accelerate's launcher, up to where it would start processes: its arguments and the environment of a process."""
    parser = launch_command_parser()
    asked = command[command.index("accelerate.commands.launch") + 1 :]
    arguments = parser.parse_args(asked)
    config = yaml.safe_load(Path(arguments.config_file).read_text())
    for section in ("fsdp_config", "deepspeed_config", "parallelism_config"):
        for key in config.get(section) or {}:
            assert hasattr(arguments, key), f"{section} has no {key}"
    arguments, defaults, from_flag = _validate_launch_command(arguments)
    if not arguments.use_deepspeed:
        return arguments, prepare_multi_gpu_env(arguments)
    fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_flag else [])]
    arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
    return arguments, prepare_deepspeed_cmd_env(arguments)[1]


@contextlib.contextmanager
def environment(values):
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def accelerate(command):
    arguments, values = launched(command)
    found = {
        "num_processes": arguments.num_processes,
        "num_machines": arguments.num_machines,
        "machine_rank": int(arguments.machine_rank),
        "mixed_precision": arguments.mixed_precision,
        "module": arguments.training_script,
        "arguments": arguments.training_script_args,
    }
    with environment(values):
        if arguments.use_fsdp:
            plugin = FullyShardedDataParallelPlugin()
            found["fsdp"] = {
                "version": plugin.fsdp_version,
                "reshard": plugin.reshard_after_forward,
                "offloads": type(plugin.cpu_offload).__name__,
                "state": plugin.state_dict_type.name,
            }
        if arguments.use_parallelism_config:
            degrees = ParallelismConfig()
            found["degrees"] = {"size": degrees.total_size, **degrees._sizes}
        if arguments.use_deepspeed:
            plugin = DeepSpeedPlugin()
            found["zero"] = {"stage": plugin.zero_stage, "init": plugin.zero3_init_flag}
    return found, arguments


def deepspeed(directory, world_size, settings):
    """DeepSpeed's own reading for so many processes, and whether it agrees with the Trainer's arguments."""
    import deepspeed.runtime.config as theirs
    from deepspeed.runtime import constants

    content = json.loads((directory / "deepspeed.json").read_text())
    known = {value for name, value in vars(constants).items() if name.isupper() and isinstance(value, str)}
    known |= {"zero_optimization"}
    assert not set(content) - known, f"DeepSpeed has no {sorted(set(content) - known)}"
    before = theirs.dist
    theirs.dist = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: world_size)
    try:
        read = theirs.DeepSpeedConfig(json.loads(json.dumps(content)))
    finally:
        theirs.dist = before
    agreed = HfTrainerDeepSpeedConfig(json.loads(json.dumps(content)))
    agreed.trainer_config_process(SimpleNamespace(**vars(settings) | {"world_size": world_size}))
    assert not agreed.mismatches, agreed.mismatches
    zero = read.zero_config
    return {
        "batch": [read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps],
        "clip": read.gradient_clipping,
        "stage": int(zero.stage),
        "offload_optimizer": zero.offload_optimizer is not None and plain(zero.offload_optimizer.device) == "cpu",
        "offload_parameters": zero.offload_param is not None and plain(zero.offload_param.device) == "cpu",
        "gathers": zero.gather_16bit_weights_on_model_save,
        "bf16": agreed.is_true("bf16.enabled"),
        "fp16": agreed.is_true("fp16.enabled"),
    }


def answer(case):
    directory = Path(case["directory"])
    command = [HERE.get(word.strip("${}"), word) if word.startswith("$") else word for word in case["command"]]
    os.chdir(directory)
    found = {}
    with environment(case["environment"]):
        found["trainer"], settings = trainer(directory, case["script"])
        found["rates"] = rates(settings)
        if "accelerate.commands.launch" in command:
            found["accelerate"], arguments = accelerate(command)
            if arguments.use_deepspeed:
                found["deepspeed"] = deepspeed(directory, arguments.num_processes, settings)
    return found


def main():
    answers = []
    for case in json.load(sys.stdin):
        noise = io.StringIO()
        try:
            with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
                answers.append(answer(case))
        except (Exception, SystemExit) as error:
            answers.append({"error": f"{type(error).__name__}: {error} {noise.getvalue()[-1500:]}"})
    print(json.dumps(answers, default=str))


if __name__ == "__main__":
    main()
