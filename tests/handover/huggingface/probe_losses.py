"""Runs in the environment of TRL: the loss of its GRPOTrainer on given tensors, in fp64, without a model.

`probe_losses.py FILE`: the tensors and settings of `loss_case.py` as JSON; prints one JSON object, formula -> numbers.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
from trl import GRPOTrainer


def trainer(at, given, *, loss_type, level, beta, delta, weights):
    """What `_compute_loss` reads of a trainer, with log-probabilities in the place of a model's."""
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (at, torch.zeros_like(at), None),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _entropy_bonus_enabled=False,
        accelerator=SimpleNamespace(num_processes=1, reduce=lambda value, **_: value, gather=lambda value: value),
        args=SimpleNamespace(
            use_bias_correction_kl=False,
            delta=delta,
            steps_per_generation=1,
            sapo_temperature_pos=given["sapo"][0],
            sapo_temperature_neg=given["sapo"][1],
        ),
        aux_loss_enabled=False,
        beta=beta,
        current_gradient_accumulation_steps=1,
        epsilon_high=1 + given["clip_high"] if loss_type == "cispo" else given["clip_high"],
        epsilon_low=given["clip"],
        importance_sampling_level=level,
        loss_type=loss_type,
        max_completion_length=given["tokens"],
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=weights is not None,
        vllm_importance_sampling_correction=weights is not None,
    )


def main(path: Path) -> None:
    given = json.loads(path.read_text())
    tensors = {name: torch.tensor(value) for name, value in given.items() if isinstance(value, list)}
    tensors = {name: value.double() for name, value in tensors.items()}
    mask = tensors["mask"]
    none = torch.zeros((len(mask), 0), dtype=torch.int64)

    def policy(loss_type, *, level="token", beta=0.0, advantage=1.0, weights=None):
        at = tensors["new"].clone().requires_grad_()
        inputs = {
            "prompt_ids": none,
            "prompt_mask": none,
            "completion_ids": torch.zeros_like(mask).long(),
            "completion_mask": mask,
            "advantages": advantage * tensors["advantage"],
            "old_per_token_logps": tensors["old"],
            "ref_per_token_logps": tensors["reference"],
            "importance_sampling_ratio": weights,
            "num_items_in_batch": mask.sum(),
        }
        settings = {"loss_type": loss_type, "level": level, "beta": beta, "delta": None, "weights": weights}
        loss = GRPOTrainer._compute_loss(trainer(at, given, **settings), None, inputs)
        (gradient,) = torch.autograd.grad(loss, at)
        return {"loss": loss.item(), "gradient": gradient.tolist()}

    answers = {
        "ppo.token": policy("dapo"),
        "ppo.sequence": policy("grpo"),
        "ppo.constant": policy("dr_grpo"),
        "ppo.tis": policy("dapo", weights=tensors["tis"]),
        "gspo": policy("grpo", level="sequence"),
        "cispo": policy("cispo"),
        "sapo": policy("sapo"),
        "kl.loss": policy("dapo", beta=1.0, advantage=0.0),
    }
    print(json.dumps(answers))


main(Path(sys.argv[1]))
