"""Runs in the environment of verl: composes each rendered file over verl's own, and builds its configuration classes.

`probe_configs.py DIRECTORY FILE ...`: prints one JSON object, file name -> "ok" or the error. Files lie in DIRECTORY.
"""

import json
import sys
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

BASES = {"ppo": "ppo_trainer", "sft": "sft_trainer_engine"}
PPO_SECTIONS = ("actor", "rollout", "model")
PPO_CLASSES = (*(f"actor_rollout_ref.{name}" for name in PPO_SECTIONS), "reward.reward_model", "algorithm")
"""Not `reward` itself: its RewardManagerConfig cannot be built in 0.9.1, with verl's own values either."""
SFT_CLASSES = ("model", "engine", "optim", "checkpoint")


def composed_by_hydra(directory: Path, name: str) -> DictConfig:
    """As verl's own command composes it, our directory on its search path."""
    with initialize_config_dir(str(directory), version_base=None):
        return compose(name, overrides=["hydra.searchpath=[pkg://verl.trainer.config]"])


def merged_strictly(values: dict[str, object], base: str) -> DictConfig:
    """Over verl's own file in struct mode, where a key that it does not have is an error."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(base)
    if "rollout" in values:  # a section of its one_step_off_ppo_trainer.yaml, which is over ppo_trainer
        OmegaConf.set_struct(config, False)
        config.rollout = {"nnodes": 1, "n_gpus_per_node": 8}
    OmegaConf.set_struct(config, True)
    open_empty_mappings(config)
    if "reward_kwargs" in values.get("reward", {}):  # its DAPO manager reads it, and no file of its own has it
        OmegaConf.set_struct(config.reward, False)
    config.merge_with(OmegaConf.create(values))
    return config


def open_empty_mappings(config: DictConfig) -> None:
    """`override_config: {}` is there to be filled."""
    for name in config:
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_interpolation():
            if len(node) == 0:
                OmegaConf.set_struct(node, False)
            else:
                open_empty_mappings(node)


def check(path: Path) -> None:
    """Raise what verl would raise."""
    values = yaml.safe_load(path.read_text())
    defaults = values.pop("defaults")
    strict = merged_strictly(values, defaults[0])
    config = composed_by_hydra(path.parent, path.stem)
    assert OmegaConf.to_container(strict, resolve=False) == OmegaConf.to_container(config, resolve=False)
    if defaults[0] == BASES["sft"]:
        classes = SFT_CLASSES
    else:
        classes = PPO_CLASSES
        if config.actor_rollout_ref.model.lora_rank == 0:  # of LoRA it asks vLLM which ranks it can serve
            validate_config(config, need_reference_policy(config), need_critic(config))
    for section in classes:
        omega_conf_to_dataclass(OmegaConf.select(config, section))


def tiny_model(directory: Path) -> None:
    """A model directory that verl's configuration classes can read."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    words = {"<s>": 0, "</s>": 1, "<pad>": 2, "a": 3}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="a")),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(directory)
    LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4, intermediate_size=64,
        vocab_size=4, architectures=["LlamaForCausalLM"],
    ).save_pretrained(directory)  # fmt: skip


def main() -> None:
    """Check every file."""
    directory, names = Path(sys.argv[1]), sys.argv[2:]
    tiny_model(directory / "model")
    found = {}
    for name in names:
        try:
            check(directory / name)
            found[name] = "ok"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
