"""Did you mean ...? The nearest of the words that would have worked."""

import difflib
from collections.abc import Iterable

HABITS = {
    "lr": "learning_rate",
    "batch_size": "global_batch",
    "train_batch_size": "global_batch",
    "per_device_train_batch_size": "micro_batch",
    "micro_batch_size": "micro_batch",
    "gradient_accumulation_steps": "accumulation",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "max_length": "seq_len",
    "max_seq_length": "seq_len",
    "max_seq_len": "seq_len",
    "block_size": "seq_len",
    "sequence_length": "seq_len",
    "seq_length": "seq_len",
    "context_length": "seq_len",
    "cutoff_len": "seq_len",
    "max_prompt_length": "max_prompt_tokens",
    "max_completion_length": "max_new_tokens",
    "max_response_length": "max_new_tokens",
    "num_generations": "samples_per_prompt",
    "group_size": "samples_per_prompt",
    "rollout_n": "samples_per_prompt",
    "warmup": "warmup_steps",
    "lr_scheduler_type": "schedule",
    "loss_type": "loss",
    "max_grad_norm": "gradient_clip",
    "save_steps": "checkpoint_every",
    "kl_coef": "kl_coefficient",
    "init_kl_coef": "kl_coefficient",
    "model_name_or_path": "model",
    "dataset": "data",
    "train_file": "data",
    "peft": "adapter",
    "lora": "adapter",
    "gpus": "accelerators",
    "num_gpus": "accelerators",
    "gpu": "accelerators",
    "tp": "tensor",
    "tensor_parallel_size": "tensor",
    "pp": "pipeline",
    "torch_dtype": "dtype",
}
"""What users of other tools write (trainers, SkyPilot), and the key here."""


METHODS = {
    "kto": "dpo {rest} --set pipeline.dpo.loss=kto",
    "simpo": "dpo {rest} --set pipeline.dpo.loss=simpo --set pipeline.dpo.beta=2",
    "orpo": "dpo {rest} --set pipeline.dpo.loss=orpo",
    "ipo": "dpo {rest} --set pipeline.dpo.loss=ipo",
    "rloo": "grpo {rest} --set pipeline.rl.estimator=rloo",
    "reinforce++": "grpo {rest} --set pipeline.rl.estimator=reinforce_pp",
    "gspo": "grpo {rest} --set pipeline.rl.ratio=sequence",
    "cispo": "grpo {rest} --set pipeline.rl.surrogate=cispo",
    "dppo": "grpo {rest} --set pipeline.rl.surrogate=dppo",
    "sapo": "grpo {rest} --set pipeline.rl.surrogate=sapo --set pipeline.rl.loss_aggregation=sequence",
    "qlora": "sft {rest}{rank} --set pipeline.sft.adapter.base_bits=4",
    "lora": "sft {rest}{rank}",
    "peft": "sft {rest}{rank}",
    "adapter": "sft {rest}{rank}",
}
"""Methods that people ask for like a kind, and the question that plans them."""


OF_RESOURCES = frozenset({"accelerators", "micro_batch", "tensor", "pipeline"})
"""Keys that stand below `resources` of a stage."""


def key_of_stage(key: str) -> str:
    """Return a key as it is written below a stage.

    >>> key_of_stage("tensor"), key_of_stage("epochs")
    ('resources.tensor', 'epochs')
    """
    return f"resources.{key}" if key in OF_RESOURCES else key


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A hint with the nearest known word, or with all of them when none is near.

    >>> did_you_mean("learning_rte", ["learning_rate", "epochs"])
    "did you mean 'learning_rate'?"
    >>> did_you_mean("xyz", ["b", "a"])
    'known: b, a'
    """
    words = list(dict.fromkeys(names))
    near = nearest(word, words)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"known: {', '.join(words)}" if words else ""


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The known word most like `word`, ignoring case; None when nothing is like it.

    >>> nearest("PPO", ["ppo", "pm"]), nearest("sfts", ["sft"]), nearest("x", ["abc"])
    ('ppo', 'sft', None)
    >>> nearest("lr", ["learning_rate", "epochs"])
    'learning_rate'
    """
    by_folded = {_fold(candidate): candidate for candidate in names}
    if HABITS.get(_fold(word)) in by_folded:
        return by_folded[HABITS[_fold(word)]]
    matches = difflib.get_close_matches(_fold(word), by_folded, n=1, cutoff=0.6)
    if matches:
        return by_folded[matches[0]]
    inside = [folded for folded in by_folded if len(_fold(word)) > 2 and _fold(word) in folded]
    return by_folded[min(inside, key=len)] if inside else None


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")
