"""Acts as the trainers of verl, OpenRLHF and NeMo RL do on a Ray cluster, without a model: for tests of nodes.

Started with the words of their interpreter (`python -m verl.trainer.main_ppo ...`). It connects to Ray as each of them
does, takes placement groups of the nodes and accelerators in the configuration that Charter wrote, and has a worker on
each node write that node's part of a checkpoint in the engine's own layout. Weights after step n are the first ones
with n thousandths added, so that a resumed run ends as an undisturbed one. Variables: STEPS of OpenRLHF, which counts
rows; HOLD, a file whose number is a step that does not begin while the file is there. `HOLD.stands-N` has the node of
worker N then, by its id.
"""

import json
import os
import shutil
import struct
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

HANG_SECONDS = 900.0
SOME_CPU = 0.5
"""Of a worker, so that the workers of one node do not need more than one."""
VERSION = "1.0"


@dataclass
class Run:
    """One run, by the engine's own configuration."""

    engine: str
    nodes: int
    per_node: int
    steps: int
    every: int
    model: Path
    checkpoints: Path
    first: int = 0
    output: Path | None = None
    generators: int = 0
    """With accelerators of their own; 0 where they share those of training."""
    each: int = 1
    """Accelerators of one of them."""

    @property
    def ranks(self):
        return self.nodes * self.per_node


def of_verl():
    import yaml

    settings = yaml.safe_load(Path("ppo.yaml").read_text())
    trainer, apart = settings["trainer"], settings.get("rollout", {})
    resume = trainer["resume_from_path"]
    return Run(
        engine="verl",
        nodes=trainer["nnodes"],
        per_node=trainer["n_gpus_per_node"],
        steps=trainer["total_training_steps"],
        every=trainer["save_freq"],
        model=Path(settings["actor_rollout_ref"]["model"]["path"]),
        checkpoints=Path(trainer["default_local_dir"]),
        first=int(resume.rpartition("_")[2]) if resume else 0,
        generators=apart.get("nnodes", 0),
        each=apart.get("n_gpus_per_node", 1),
    )


def of_nemo_rl(config):
    import yaml

    settings = yaml.safe_load(Path(config).read_text())
    checkpoints = Path(settings["checkpointing"]["checkpoint_dir"])
    names = [path.name for path in checkpoints.glob("step_*")]
    return Run(
        engine="nemo_rl",
        nodes=settings["cluster"]["num_nodes"],
        per_node=settings["cluster"]["gpus_per_node"],
        steps=settings["grpo"]["max_num_steps"],
        every=settings["checkpointing"]["save_period"],
        model=Path(settings["policy"]["model_name"]),
        checkpoints=checkpoints,
        first=max((int(name.removeprefix("step_")) for name in names), default=0),
    )


def of_skyrl(config):
    import yaml

    trainer = yaml.safe_load(Path(config).read_text())["trainer"]
    checkpoints = Path(trainer["ckpt_path"])
    latest = checkpoints / "latest_ckpt_global_step.txt"
    return Run(
        engine="skyrl",
        nodes=trainer["placement"]["policy_num_nodes"],
        per_node=trainer["placement"]["policy_num_gpus_per_node"],
        steps=int(os.environ["STEPS"]),
        every=trainer["ckpt_interval"],
        model=Path(trainer["policy"]["model"]["path"]),
        checkpoints=checkpoints,
        first=int(latest.read_text()) if latest.exists() else 0,
    )


def of_openrlhf(words):
    options = {}
    for word in words:
        if word.startswith("--"):
            options[name := word] = ""
        else:
            options[name] = word
    checkpoints = Path(options["--ckpt.path"])
    latest = checkpoints / "_actor" / "latest"
    together = "--train.colocate_all" in options and "--train.async_enable" not in options
    return Run(
        engine="openrlhf",
        nodes=int(options["--actor.num_nodes"]),
        per_node=int(options["--actor.num_gpus_per_node"]),
        generators=0 if together else int(options["--vllm.num_engines"]),
        each=int(options["--vllm.tensor_parallel_size"]),
        steps=int(os.environ["STEPS"]),
        every=int(options["--ckpt.save_steps"]),
        model=Path(options["--actor.model_name_or_path"]),
        checkpoints=checkpoints,
        first=int(latest.read_text().removeprefix("global_step")) if "--ckpt.load_enable" in options else 0,
        output=Path(options["--ckpt.output_dir"]),
    )


def connect(engine):
    """Connect as the engine does; each passes variables of its own to its workers."""
    import ray

    if engine == "nemo_rl":
        ray.init(address="auto", log_to_driver=True, runtime_env={"env_vars": dict(os.environ)})
    elif engine == "openrlhf":
        ray.init(runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "true"}})
    else:
        key = "ray_kwargs.ray_init.runtime_env.py_executable="
        python = next((word.removeprefix(key).strip("'") for word in sys.argv if word.startswith(key)), None)
        named = {"py_executable": python} if python else {}
        ray.init(runtime_env={"env_vars": {"NCCL_DEBUG": "WARN"}, "working_dir": None, **named})


def groups_of(run):
    """Placement groups as the engine asks for them: group, bundle and accelerators of each worker."""
    from ray.util.placement_group import placement_group

    bundle = {"GPU": run.per_node, "CPU": SOME_CPU}
    if run.engine == "verl":
        groups = [placement_group([bundle], strategy="STRICT_PACK") for _ in range(run.nodes)]
        places = [(group, 0, run.per_node) for group in groups]
    else:
        group = placement_group([bundle] * run.nodes, strategy="PACK")
        places = [(group, number, run.per_node) for number in range(run.nodes)]
    if run.generators:
        apart = placement_group([{"GPU": run.each, "CPU": SOME_CPU}] * run.generators, strategy="PACK")
        places += [(apart, number, run.each) for number in range(run.generators)]
    return places


class Worker:
    """The processes of one node as one; those after the trainers' generate, and have no part in a checkpoint."""

    def __init__(self, run, node):
        self.run, self.node = run, node
        self.mine = range(node * run.per_node, (node + 1) * run.per_node) if node < run.nodes else ()

    def devices(self):
        """What it sees, when it runs in the engine's environment: its interpreter says so."""
        return os.environ.get("CUDA_VISIBLE_DEVICES") if "ENGINE_OF_TEST" in os.environ else None

    def train(self, step):
        """Make a step, which may have to wait for a test; the node of rank 0 prints it."""
        import ray
        from waiting import eventually

        hold = Path(os.environ["HOLD"])
        if is_held(hold, step):
            new = hold.with_suffix(f".new-{self.node}")
            new.write_text(ray.get_runtime_context().get_node_id())
            new.rename(hold.with_suffix(f".stands-{self.node}"))
            eventually(lambda: not is_held(hold, step), f"the end of {hold}", seconds=HANG_SECONDS)
        if not self.node:
            log(self.run, step)

    def save(self, step):
        """This node's part of a checkpoint."""
        run = self.run
        if run.engine == "verl":
            place = run.checkpoints / f"global_step_{step}" / "actor"
            for rank in self.mine:
                for kind in ("model", "optim", "extra_state"):
                    archive(place / f"{kind}_world_size_{run.ranks}_rank_{rank}.pt", f"{kind} {rank} {step}")
        elif run.engine == "openrlhf":
            place = run.checkpoints / "_actor" / f"global_step{step}"
            for rank in self.mine:
                archive(place / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", f"{rank} {step}")
        else:
            place = run.checkpoints / f"tmp_step_{step}" / "policy" / "optimizer" / "optim"
            for rank in self.mine:
                archive(place / f"__{rank}_0.distcp", f"{rank} {step}")


def is_held(hold, step):
    try:
        return step >= int(hold.read_text())
    except FileNotFoundError:
        return False


def log(run, step):
    if run.engine == "verl":
        print(f"step:{step} - training/global_step:{step} - actor/pg_loss:{1 / step:.4f} - timing_s/step:0.01")
    elif run.engine == "openrlhf":
        add_event(run.checkpoints.parent / "tensorboard", step, "train/policy_loss", 1 / step)
    sys.stdout.flush()


def add_event(directory, step, tag, value):
    """One scalar as TensorBoard's writer lays it out; checksums are left at zero."""
    name = tag.encode()
    scalar = bytes([10, len(name)]) + name + bytes([21]) + struct.pack("<f", value)
    summary = bytes([10, len(scalar)]) + scalar
    event = bytes([9]) + struct.pack("<d", time.time()) + bytes([16, step]) + bytes([42, len(summary)]) + summary
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "events.out.tfevents.1").open("ab") as file:
        file.write(struct.pack("<QI", len(event), 0) + event + struct.pack("<I", 0))


def finish(run, step):
    """What the engine's first process adds to a checkpoint, and by which it says that it is whole."""
    if run.engine == "verl":
        place = run.checkpoints / f"global_step_{step}"
        write(place / "actor" / "fsdp_config.json", json.dumps({"world_size": run.ranks}))
        weights(run.model, place / "actor" / "huggingface" / "weights.safetensors", step)
        shutil.copy(run.model / "config.json", place / "actor" / "huggingface" / "config.json")
        archive(place / "data.pt", f"{step}")
        write(run.checkpoints / "latest_checkpointed_iteration.txt", str(step))
    elif run.engine == "openrlhf":
        place = run.checkpoints / "_actor"
        write(place / "latest", f"global_step{step}")
        write(place / f"global_step{step}" / "metric.json", "{}")
    else:
        place = run.checkpoints / f"tmp_step_{step}"
        write(place / "training_info.json", json.dumps({"total_steps": step}))
        write(place / "config.yaml", "a: 1\n")
        write(place / "policy" / "optimizer" / "optim" / ".metadata", "metadata")
        weights(run.model, place / "policy" / "weights" / "model" / "consolidated" / "model.safetensors", step)
        archive(place / "train_dataloader.pt", f"{step}")
        place.rename(run.checkpoints / f"step_{step}")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def archive(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(zipfile.ZipInfo("data"), text)


def weights(model, target, step):
    data = (model / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    name = min(name for name in header if name != "__metadata__")
    begin = header[name]["data_offsets"][0]
    (first,) = struct.unpack_from("<f", body, begin)
    struct.pack_into("<f", body, begin, first + step / 1000)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data[: 8 + length] + body)


def train(run):
    """Drive the workers to the last step; their errors are the driver's."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    connect(run.engine)
    places = groups_of(run)
    ray.get([group.ready() for group, _, _ in places])
    workers = []
    for node, (group, bundle, count) in enumerate(places):
        there = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
        make = ray.remote(num_gpus=count, num_cpus=SOME_CPU, scheduling_strategy=there)(Worker)
        workers.append(make.remote(run, node))
    devices = ray.get([worker.devices.remote() for worker in workers])
    assert [len((item or "").split(",")) for item in devices] == [count for _, _, count in places], devices
    step = run.first
    while step < run.steps:
        step += 1
        ray.get([worker.train.remote(step) for worker in workers])
        if run.engine == "nemo_rl":
            print(f"========= Step {step}/{run.steps} =========\nTraining Results:\n  • Loss: {1 / step:.4f}")
            print("  • Total step time: 0.01s", flush=True)
        if step % run.every == 0 or step == run.steps:
            ray.get([worker.save.remote(step) for worker in workers])
            finish(run, step)
    if run.output is not None:
        weights(run.model, run.output / "model.safetensors", step)
        for name in ("config.json", "tokenizer_config.json"):
            shutil.copy(run.model / name, run.output / name)


def merge(words):
    """verl's merger: its shards here hold no weights, which lie beside them."""
    options = dict(zip(words[::2], words[1::2], strict=True))
    target = Path(options["--target_dir"])
    target.mkdir(parents=True)
    shutil.copy(Path(options["--local_dir"]) / "huggingface" / "weights.safetensors", target / "model.safetensors")


def run_of(words):
    """What the words of an engine's command, and the configuration that they name, ask for."""
    if "verl.trainer.main_ppo" in words or "verl.experimental.one_step_off_policy.main_ppo" in words:
        return of_verl()
    if "openrlhf.cli.train_ppo_ray" in words:
        return of_openrlhf(words[words.index("openrlhf.cli.train_ppo_ray") + 1 :])
    if "--config" in words:
        return of_nemo_rl(words[words.index("--config") + 1])
    return of_skyrl(words[-1])


def main(words):
    if "-c" in words:
        print(json.dumps(dict.fromkeys(words[words.index("-c") + 2 :], VERSION)))
    elif "verl.model_merger" in words:
        merge(words[words.index("merge") + 1 :])
    else:
        train(run_of(words))


if __name__ == "__main__":
    main(sys.argv[1:])
