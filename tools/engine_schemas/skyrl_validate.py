"""Hand exports to SkyRL's own classes and checks, and the hand-computed values to its losses.

`PYTHON tools/engine_schemas/skyrl_validate.py VECTORS DIRECTORY ...`: VECTORS is tests/published/data/rl_vectors.json,
a DIRECTORY holds an export (skyrl.yaml, run_skyrl.py). A line is printed for each, and the exit code is 1 where one was
refused or differs. Run by hand, by an interpreter as for skyrl_schema.py; continuous integration has none.
"""

import json
import runpy
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

TOLERANCE = 1e-6
CORRECTED: dict[str, dict[str, object]] = {
    "loss.tis.token": {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 2.0},
    "loss.icepop": {
        "tis_ratio_type": "token",
        "token_tis_ratio_clip_high": 2.0,
        "token_mask_is_threshold_low": 0.5,
        "token_mask_is_threshold_high": 2.0,
    },
    "loss.seq_mask_tis": {
        "tis_ratio_type": "token",
        "token_tis_ratio_clip_high": 1e8,
        "sequence_mask_metric": "geometric",
    },
}
"""Name of a value -> settings of off_policy_correction, as `_correction` of the mapping writes them."""
LOSSES: dict[str, dict[str, object]] = {
    "loss.ppo.token": {},
    "loss.ppo.sequence": {"loss_reduction": "sequence_mean"},
    "loss.ppo.prompt": {"loss_reduction": "prompt_mean"},
    "loss.ppo.constant": {"loss_reduction": "seq_mean_token_sum_norm"},
    "loss.grpo": {"loss_reduction": "sequence_mean"},
    "loss.dr_grpo": {"loss_reduction": "seq_mean_token_sum_norm"},
    "loss.ppo.dual_clip": {"policy_loss_type": "dual_clip"},
    "loss.gspo": {"policy_loss_type": "gspo", "loss_reduction": "sequence_mean"},
    "loss.cispo.paper": {"policy_loss_type": "cispo"},
    "loss.cispo.both_sides": {"policy_loss_type": "cispo"},
    **{name: {} for name in CORRECTED},
}

BY_DEVIATION = ("loss.grpo", "loss.gspo", "loss.cispo.paper", "loss.cispo.both_sides")
"""Values whose advantages are divided by the deviation of their group."""


def main(vectors: str, directories: list[str]) -> int:
    """Return 1 if anything was refused or differs."""
    wrong = [directory for directory in directories if not accepted(Path(directory).resolve())]
    document = json.loads(Path(vectors).read_text())
    by_name = {entry["name"]: entry for entry in document["vectors"]}
    for name, ours, theirs in computed(document, by_name):
        near = torch.allclose(torch.as_tensor(theirs).double(), torch.as_tensor(ours).double(), atol=TOLERANCE, rtol=0)
        print(f"{'ok' if near else 'DIFFERS'} {name}: {ours} {theirs}")
        wrong += [] if near else [name]
    return 1 if wrong else 0


def accepted(directory: Path) -> bool:
    """Return True if its configuration classes and checks take an export's file."""
    sys.argv = ["run_skyrl.py", str(directory / "skyrl.yaml")]
    try:
        entry = runpy.run_path(str(directory / "run_skyrl.py"), run_name="probe")
        entry["validate_cfg"](entry["settings"]())
    except (AssertionError, ValueError, TypeError, NotImplementedError) as error:
        print(f"REFUSED {directory}: {error}")
        return False
    print(f"ok {directory}")
    return True


def computed(document: dict[str, Any], by_name: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each value, ours, and SkyRL's."""
    math = import_module("skyrl.backends.skyrl_train.utils.ppo_utils")
    mask = torch.tensor(document["mask"], dtype=torch.float64)
    score = torch.zeros_like(mask)
    score[:, 0] = torch.tensor(document["score"], dtype=torch.float64)
    estimators = {
        "advantage.grpo": ("grpo", True),
        "advantage.dr_grpo": ("grpo", False),
        "advantage.rloo": ("rloo", True),
    }
    for name, (estimator, by_deviation) in estimators.items():
        given, _ = math.AdvantageEstimatorRegistry.get(estimator)(
            token_level_rewards=score.clone(), response_mask=torch.ones_like(mask), index=["a", "a", "b", "b"],
            grpo_norm_by_std=by_deviation,
        )  # fmt: skip
        yield name, by_name[name]["value"], given[:, 0].tolist()
    for name, settings in LOSSES.items():
        yield name, by_name[name]["value"], loss(math, settings, by_name[name], document)


def loss(math: Any, settings: dict[str, Any], entry: dict[str, Any], document: dict[str, Any]) -> float:
    """SkyRL's loss of one micro-batch that is the whole minibatch, as its worker adds it up."""
    name, low, high = entry["name"], 0.2, 0.2
    tensors = {key: torch.tensor(document[f"log_{key}"], dtype=torch.float64) for key in ("policy", "old", "generator")}
    mask = torch.tensor(document["mask"], dtype=torch.float64)
    compared = "advantage.grpo" if name in BY_DEVIATION else "advantage.dr_grpo"
    given = next(item["value"] for item in document["vectors"] if item["name"] == compared)
    advantage = torch.tensor(given, dtype=torch.float64)[:, None].expand_as(mask)
    if "ratio" in entry:
        tensors["policy"] = tensors["old"] + torch.tensor(entry["ratio"], dtype=torch.float64).log()
        advantage = torch.tensor(entry["advantage"], dtype=torch.float64)
    if "clip" in entry:
        low, high = entry["clip"]
    kind = str(settings.get("policy_loss_type", "regular"))
    classes = import_module("skyrl.train.config")
    bounds = dict(zip(("geo_mask_low", "geo_mask_high"), entry.get("bounds", (0.99, 1.01)), strict=True))
    config = classes.AlgorithmConfig(
        policy_loss_type=kind, eps_clip_low=low, eps_clip_high=high, clip_ratio_c=entry.get("clip_c", 3.0),
        cispo=classes.CISPOConfig(
            cispo_eps_clip_low=1.0 if name.endswith("paper") else 0.2, cispo_eps_clip_high=0.2
        ),
        off_policy_correction=classes.OffPolicyCorrectionConfig(**{**bounds, **CORRECTED.get(name, {})}),
    )  # fmt: skip
    scaled = math.apply_loss_reduction_to_advantages_minibatch(
        advantage, mask, str(settings.get("loss_reduction", "token_mean")), micro_batch_size=len(mask),
        max_seq_len=entry.get("horizon"), prompt_boundaries=[(0, 2), (2, 4)],
    )  # fmt: skip
    total, _ = math.PolicyLossRegistry.get(kind)(
        tensors["policy"], tensors["old"], scaled, config, mask, tensors["generator"]
    )
    if "kl_coefficient" in entry:
        reference = torch.tensor(document["log_reference"], dtype=torch.float64)
        penalty = math.compute_approx_kl(tensors["policy"], reference, mask, "k3")
        total = total + entry["kl_coefficient"] * (penalty.sum(-1) / mask.sum(-1)).mean()
    return float(total)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
