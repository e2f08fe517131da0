"""Options of a loss in other engines: which hand-computed formula they mean, and what the engine is told of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from charter.engines import render
from charter.engines.common.formulas import formulas
from charter.errors import SpecError
from charter.spec.rewards import Mismatch, Reward
from plain_stages import accepted_stage, handover, layout_of

VECTORS = Path(__file__).parents[2] / "published" / "data" / "rl_vectors.json"
NAMES = {entry["name"] for entry in json.loads(VECTORS.read_text())["vectors"]}
ENGINES = ("trl", "verl", "openrlhf", "nemo_rl", "skyrl")
GROUP = {"estimator": "grpo", "samples_per_prompt": 4, "kl_coefficient": 0.0}
GSPO = {"ratio": "sequence", "loss_aggregation": "sequence", "clip_ratio": 3e-4, "clip_ratio_high": 4e-4}
CISPO = {"surrogate": "cispo", "clip_ratio": 1.0, "clip_ratio_high": 0.2}
SAPO = {"surrogate": "sapo", "loss_aggregation": "sequence"}
DR_GRPO = {"scale_advantages": "none", "loss_aggregation": "constant"}
REFUSED = None
ACTOR, CORRECTION = "actor_rollout_ref.actor", "--algo.advantage.is_correction"
OURS = "trainer.algorithm"
CASES = [
    (GSPO, ("advantage.grpo", "loss.gspo"), {
        "trl": {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon_high": 4e-4},
        "verl": {f"{ACTOR}.policy_loss.loss_mode": "gspo", f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"},
        "openrlhf": {"--actor.policy_loss_type": ["gspo"], "--actor.eps_clip_low_high": ["0.0003", "0.0004"]},
        "nemo_rl": {"loss_fn.sequence_level_importance_ratios": True, "loss_fn.token_level_loss": False},
        "skyrl": {f"{OURS}.policy_loss_type": "gspo", f"{OURS}.loss_reduction": "sequence_mean"},
    }),
    (CISPO, ("advantage.grpo", "loss.cispo.paper"), {
        "trl": {"loss_type": "cispo", "epsilon_high": 1.2},
        "verl": {f"{ACTOR}.policy_loss.loss_mode": "cispo", f"{ACTOR}.clip_ratio_low": 1.0},
        "openrlhf": REFUSED,
        "nemo_rl": {"loss_fn.use_cispo": True, "loss_fn.ratio_clip_min": 1.0, "loss_fn.ratio_clip_max": 0.2},
        "skyrl": {f"{OURS}.policy_loss_type": "cispo", f"{OURS}.cispo.cispo_eps_clip_low": 1.0},
    }),
    ({**CISPO, "clip_ratio": 0.2}, ("advantage.grpo", "loss.cispo.both_sides"), {
        "trl": REFUSED,
        "verl": {f"{ACTOR}.policy_loss.loss_mode": "cispo", f"{ACTOR}.clip_ratio_low": 0.2},
        "openrlhf": REFUSED,
        "nemo_rl": {"loss_fn.use_cispo": True},
        "skyrl": {f"{OURS}.cispo.cispo_eps_clip_low": 0.2, f"{OURS}.cispo.cispo_eps_clip_high": 0.2},
    }),
    (SAPO, ("advantage.grpo", "loss.sapo"), {
        "trl": {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05},
        "verl": {f"{ACTOR}.policy_loss.loss_mode": "sapo", f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
                 f"{ACTOR}.tau_pos": 1.0, f"{ACTOR}.tau_neg": 1.05},
        "openrlhf": REFUSED,
        "nemo_rl": REFUSED,
        "skyrl": {f"{OURS}.policy_loss_type": "sapo", f"{OURS}.loss_reduction": "sequence_mean",
                  f"{OURS}.sapo.tau_pos": 1.0, f"{OURS}.sapo.tau_neg": 1.05},
    }),
    ({"off_policy_mask": 0.5, "generator": "native"}, ("advantage.grpo", "loss.ppo.token", "loss.opsm"), {
        **dict.fromkeys(("verl", "openrlhf", "nemo_rl", "skyrl"), REFUSED),
        "trl": {"off_policy_mask_threshold": 0.5},
    }),
    ({"surrogate": "dppo"}, ("advantage.grpo", "loss.dppo"),
     dict.fromkeys(("trl", "verl", "openrlhf", "nemo_rl", "skyrl"), REFUSED)),
    (DR_GRPO, ("advantage.dr_grpo", "loss.dr_grpo"), {
        "trl": {"loss_type": "dr_grpo", "scale_rewards": "none"},
        "verl": {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor": 512},
        "openrlhf": REFUSED,
        "nemo_rl": REFUSED,
        "skyrl": {f"{OURS}.loss_reduction": "seq_mean_token_sum_norm", f"{OURS}.max_seq_len": 512},
    }),
    ({**DR_GRPO, "loss_horizon": 8}, ("advantage.dr_grpo", "loss.dr_grpo"), {
        "trl": REFUSED,
        "verl": {f"{ACTOR}.loss_scale_factor": 8},
        "openrlhf": REFUSED,
        "nemo_rl": REFUSED,
        "skyrl": {f"{OURS}.max_seq_len": 8, f"{OURS}.grpo_norm_by_std": False},
    }),
    ({"loss_aggregation": "prompt"}, ("advantage.grpo", "loss.ppo.prompt"), {
        **dict.fromkeys(("trl", "verl", "openrlhf", "nemo_rl"), REFUSED),
        "skyrl": {f"{OURS}.loss_reduction": "prompt_mean"},
    }),
    ({"mismatch": Mismatch(high=2.0)}, ("advantage.grpo", "loss.ppo.token", "loss.tis.token"), {
        "trl": {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0},
        "verl": {"algorithm.rollout_correction.rollout_is_threshold": 2.0},
        "openrlhf": {"--algo.advantage.is_correction_threshold": ["0.0", "2.0"]},
        "nemo_rl": {"loss_fn.truncated_importance_sampling_type": "tis"},
        "skyrl": {f"{OURS}.off_policy_correction.token_tis_ratio_clip_high": 2.0},
    }),
    ({"mismatch": Mismatch(method="icepop", low=0.5, high=2.0)}, ("advantage.grpo", "loss.ppo.token", "loss.icepop"), {
        "trl": {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 0.5},
        "verl": REFUSED,
        "openrlhf": {f"{CORRECTION}_mode": ["mask"], f"{CORRECTION}_level": ["token"]},
        "nemo_rl": {"loss_fn.truncated_importance_sampling_type": "icepop"},
        "skyrl": {f"{OURS}.off_policy_correction.token_mask_is_threshold_low": 0.5},
    }),
    ({"mismatch": Mismatch(method="sequence_mask", low=0.9, high=1.1)},
     ("advantage.grpo", "loss.ppo.token", "loss.seq_mask_tis"), {
        "trl": REFUSED,
        "verl": REFUSED,
        "openrlhf": {f"{CORRECTION}_mode": ["mask"], f"{CORRECTION}_level": ["seq"]},
        "nemo_rl": {"loss_fn.truncated_importance_sampling_type": "seq-mask-tis"},
        "skyrl": {f"{OURS}.off_policy_correction.geo_mask_low": 0.9},
    }),
    ({"clip_ratio_high": 0.28, "dual_clip": 3.0}, ("advantage.grpo", "loss.ppo.token", "loss.ppo.dual_clip"), {
        "trl": REFUSED,
        "verl": {f"{ACTOR}.clip_ratio_c": 3.0, f"{ACTOR}.clip_ratio_high": 0.28},
        "openrlhf": {"--actor.dual_clip": ["3.0"], "--actor.eps_clip_low_high": ["0.2", "0.28"]},
        "nemo_rl": {"loss_fn.ratio_clip_c": 3.0},
        "skyrl": {f"{OURS}.policy_loss_type": "dual_clip", f"{OURS}.clip_ratio_c": 3.0},
    }),
]  # fmt: skip


def rendered(engine, **changes):
    stage = accepted_stage(engine, "ppo", **{**GROUP, **changes})
    return stage, render(handover(stage, layout_of(stage)))


def settings_of(run):
    """Dotted keys of the YAML file, or options of the command line."""
    if "openrlhf.json" in run.files:
        return json.loads(run.files["openrlhf.json"])["options"]
    [text] = [text for name, text in run.files.items() if name in ("grpo.yaml", "ppo.yaml", "skyrl.yaml")]
    flat = {}

    def walk(value, at):
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, f"{at}.{name}" if at else name)
        else:
            flat[at] = value

    walk(yaml.safe_load(text), "")
    return flat


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("options", "names", "by_engine"), CASES, ids=[names[-1] for _, names, _ in CASES])
def test_options_mean_a_formula_or_are_refused(options, names, by_engine, engine):
    wanted = by_engine[engine]
    if wanted is REFUSED:
        with pytest.raises(SpecError) as caught:
            rendered(engine, **options)
        told = {problem.path.rpartition(".")[2] for problem in caught.value.problems}
        assert told & {*options, "clip_ratio"}
        return
    stage, run = rendered(engine, **options)
    assert run.formulas == formulas(stage) == names
    assert set(names) <= NAMES
    settings = settings_of(run)
    assert {key: settings[key] for key in wanted} == wanted


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "options",
    [
        {"ratio": "sequence", "loss_aggregation": "token"},
        {"surrogate": "cispo", "clip_ratio": 1.0, "loss_aggregation": "sequence"},
        {**CISPO, "dual_clip": 3.0},
        {**SAPO, "loss_aggregation": "token"},
        {**SAPO, "ratio": "sequence"},
        {"mismatch": Mismatch(high=2.0, level="product")},
        {"ratio": "product"},
    ],
    ids=lambda options: "-".join(options),
)
def test_what_is_no_formula_of_the_list_is_refused(options, engine):
    with pytest.raises(SpecError):
        rendered(engine, **options)


def test_every_name_is_of_a_vector():
    group = accepted_stage("native", "ppo", estimator="grpo", samples_per_prompt=4)
    for scale in ("group", "batch", "mean", "none"):
        assert set(formulas(replace(group, scale_advantages=scale))) <= NAMES
    for estimator in ("gae", "rloo", "reinforce", "reinforce_pp", "reinforce_pp_baseline"):
        for estimate in ("k1", "k2", "k3"):
            assert set(formulas(replace(group, estimator=estimator, kl_estimator=estimate))) <= NAMES
    for aggregation in ("token", "sequence", "constant", "prompt"):
        assert set(formulas(replace(group, loss_aggregation=aggregation))) <= NAMES
    rewards = tuple(Reward(name=name, kind="function", call="charter:overlong") for name in "ab")
    for mixture in ("sum_then_normalise", "normalise_then_sum"):
        assert set(formulas(replace(group, rewards=rewards, mixture=mixture))) <= NAMES
