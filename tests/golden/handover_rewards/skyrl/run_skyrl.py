"""SkyRL's trainer with Charter's rewards, prompts in the file's order, and a file of metrics."""

import json
import numbers
import pathlib
import sys
import time

import ray
import skyrl_gym
from omegaconf import OmegaConf
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.tracking import Tracking
from skyrl.train.utils.utils import initialize_ray
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from torchdata.stateful_dataloader import StatefulDataLoader

WORK = pathlib.Path(__file__).resolve().parent


class Environment(BaseTextEnv):
    """One turn, whose answer the generator scores, since it knows the tokens."""

    def __init__(self, env_config, extras):
        super().__init__()
        self.extras = extras

    def step(self, action):
        self.extras["reply"] = action
        return BaseTextEnvStepOutput(observations=[], reward=0.0, done=True, metadata={})


class Generator(SkyRLGymGenerator):
    def _post_process_agent_loop_output(self, output, extras, trajectory_id):
        import rewards

        count = len(output.response_ids)
        total = rewards.rewards_of(extras["reply"], extras["charter"], tokens=count)[0]
        output.reward = [0.0] * (count - 1) + [total]
        return output


class Trainer(RayPPOTrainer):
    def _build_train_dataloader_and_compute_training_steps(self):
        rows, settings = self.train_dataset, self.cfg.trainer
        self.train_dataloader = StatefulDataLoader(
            rows, batch_size=settings.train_batch_size, shuffle=False, drop_last=True, collate_fn=rows.collate_fn
        )
        self.total_training_steps = min(len(self.train_dataloader), settings.max_training_steps)


class Metrics(Tracking):
    def log(self, data, step, commit=False):
        super().log(data, step, commit)
        values = {name: float(value) for name, value in data.items() if isinstance(value, numbers.Real)}
        with (WORK / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "time": time.time(), "data": values}) + "\n")


class Experiment(BasePPOExp):
    def get_generator(self, cfg, tokenizer, inference_engine_client):
        return Generator(
            generator_cfg=cfg.generator,
            skyrl_gym_cfg=cfg.environment.skyrl_gym,
            inference_engine_client=inference_engine_client,
            tokenizer=tokenizer,
            policy_model_name=resolve_policy_model_name(cfg),
        )

    def get_trainer(self, **parts):
        return Trainer(**parts)

    def get_tracker(self):
        names = self.cfg.trainer
        return Metrics(names.project_name, names.run_name, backend=names.logger, config=self.cfg)


def settings():
    """The file, with places below this directory as whole paths, since workers of Ray begin elsewhere."""
    values = OmegaConf.to_container(OmegaConf.load(sys.argv[1]))
    trainer, model = values["trainer"], values["trainer"]["policy"]["model"]
    places = [(values["data"]["train_data"], 0), (model["lora"], "lora_sync_path"), (trainer, "resume_path")]
    places += [(trainer, name) for name in ("ckpt_path", "export_path", "log_path")]
    places += [(trainer[role]["model"], "path") for role in ("policy", "ref") if (WORK / model["path"]).is_dir()]
    for place, name in places:
        if place[name] is not None:
            place[name] = str(WORK / place[name])
    return SkyRLTrainConfig.from_dict_config(OmegaConf.create(values))


@ray.remote(num_cpus=1)
def train(cfg):
    sys.path.insert(0, str(WORK))
    skyrl_gym.register(id="charter", entry_point=Environment)
    Experiment(cfg).run()


def main():
    cfg = settings()
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(train.remote(cfg))


if __name__ == "__main__":
    main()
