"""Runs in the environment of verl: its own losses and advantages on given tensors, in fp64.

`probe_losses.py FILE`: the tensors and settings of `loss_case.py` as JSON; prints one JSON object, formula -> numbers.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

NO_DUAL = 1e9


def main(path: Path) -> None:
    given = json.loads(path.read_text())
    tensors = {name: torch.tensor(value) for name, value in given.items() if isinstance(value, list)}
    tensors = {name: value.double() for name, value in tensors.items()}
    mask, new, old = tensors["mask"], tensors["new"], tensors["old"]
    groups = np.arange(len(mask)) // given["samples"]
    outcome = torch.zeros_like(mask)
    outcome[:, 0] = tensors["score"]

    def with_gradient(loss, at):
        at = at.clone().requires_grad_()
        value = loss(at)
        (gradient,) = torch.autograd.grad(value, at)
        return {"loss": value.item(), "gradient": gradient.tolist()}

    def policy(name, mode, *, dual=NO_DUAL, low=given["clip"], weights=None):
        actor = ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio=given["clip"],
            clip_ratio_low=low,
            clip_ratio_high=given["clip_high"],
            clip_ratio_c=dual,
            tau_pos=given["sapo"][0],
            tau_neg=given["sapo"][1],
        )
        function = core_algos.get_policy_loss_fn(name)
        rest = {"loss_agg_mode": mode, "config": actor, "rollout_is_weights": weights}
        return with_gradient(lambda at: function(old, at, tensors["advantage"], mask, **rest)[0], new)

    def value_loss(at):
        target, before = tensors["return"], tensors["old_value"]
        return core_algos.compute_value_loss(at, target, before, mask, cliprange_value=given["value_clip"])[0]

    gae, returns = core_algos.compute_gae_advantage_return(
        tensors["reward"], tensors["value"], mask, given["discount"], given["lambda"]
    )
    later, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        tensors["reward"], mask, config=SimpleNamespace(gamma=given["discount"])
    )
    grpo = core_algos.compute_grpo_outcome_advantage
    answers = {
        "ppo.token": policy("vanilla", "token-mean"),
        "ppo.sequence": policy("vanilla", "seq-mean-token-mean"),
        "ppo.constant": policy("vanilla", "seq-mean-token-sum-norm"),
        "ppo.dual": policy("vanilla", "token-mean", dual=given["dual"]),
        "ppo.tis": policy("vanilla", "token-mean", weights=tensors["tis"]),
        "gspo": policy("gspo", "seq-mean-token-mean"),
        "gspo.token": policy("gspo", "token-mean"),
        "cispo": policy("cispo", "token-mean", low=1.0),
        "sapo": policy("sapo", "seq-mean-token-mean"),
        "value": with_gradient(value_loss, tensors["value"]),
        **{
            f"kl.{name}": (core_algos.kl_penalty(new, tensors["reference"], name) * mask).tolist()
            for name in ("k1", "k2", "k3")
        },
        "grpo": grpo(outcome.clone(), mask, groups)[0].tolist(),
        "grpo.none": grpo(outcome.clone(), mask, groups, norm_adv_by_std_in_grpo=False)[0].tolist(),
        "rloo": core_algos.compute_rloo_outcome_advantage(tensors["reward"].clone(), mask, groups)[0].tolist(),
        "gae.whitened": (gae * mask).tolist(),
        "gae.returns": (returns * mask).tolist(),
        "reinforce.whitened": later.tolist(),
    }
    print(json.dumps(answers))


main(Path(sys.argv[1]))
