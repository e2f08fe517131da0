"""OpenRLHF's own losses on random tensors against ours.

Its package imports what needs a GPU (DeepSpeed's kernels, Ray), so its files are read and only the functions that are
compared become a module of their own, in this process.
"""

import ast
import importlib.util
from functools import partial

import pytest
from engine_case import engine_python
from loss_case import (
    CLIP,
    CLIP_HIGH,
    DISCOUNT,
    DUAL,
    HIGH,
    LAMBDA,
    LOW,
    VALUE_CLIP,
    assert_equal,
    ours,
    rollout,
    with_gradient,
)

TENSORS = rollout()
OURS = ours(TENSORS)
MASK = TENSORS["mask"].double()


WANTED = {
    "models/utils.py": ("masked_mean", "compute_approx_kl"),
    "models/loss.py": ("aggregate_loss", "PolicyLoss", "ValueLoss", "PairWiseLoss"),
    "trainer/ppo_utils/experience_maker.py": ("get_advantages_and_returns", "get_cumulative_returns"),
}
HEADER = "from typing import *\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """The functions and classes that are compared, as a module of their own."""
    (package,) = (engine_python("openrlhf").parent.parent / "lib").glob("python3.*/site-packages/openrlhf")
    texts = [HEADER]
    for path, names in WANTED.items():
        nodes = ast.walk(ast.parse((package / path).read_text()))
        texts += [ast.unparse(node) for node in nodes if getattr(node, "name", None) in names]
    file = tmp_path_factory.mktemp("openrlhf") / "openrlhf_losses.py"
    file.write_text("\n\n".join(texts))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def theirs(module):
    def policy(**options):
        given = {"clip_eps_low": CLIP, "clip_eps_high": CLIP_HIGH, **options}
        function = module.PolicyLoss(**given)
        rest = {"action_mask": MASK, "rollout_log_probs": TENSORS["generator"]}
        return with_gradient(lambda at: function(at, TENSORS["old"], TENSORS["advantage"], **rest)[0], TENSORS["new"])

    def corrected(level, mode):
        bounds = {"is_correction_threshold": (LOW, HIGH)}
        return policy(is_correction_level=level, is_correction_mode=mode, **bounds)

    value = module.ValueLoss(clip_eps=VALUE_CLIP)
    old_value, target = TENSORS["old_value"], TENSORS["return"]
    gae, returns = module.get_advantages_and_returns(None, TENSORS["value"], TENSORS["reward"], MASK, DISCOUNT, LAMBDA)
    kl = partial(module.compute_approx_kl, TENSORS["new"], TENSORS["reference"])
    pairs = module.PairWiseLoss()
    return {
        "ppo.token": policy(),
        "ppo.sequence": policy(token_level_loss=False),
        "ppo.dual": policy(dual_clip=DUAL),
        "ppo.tis": corrected("token", "clip"),
        "ppo.icepop": corrected("token", "mask"),
        "ppo.sequence_mask": corrected("seq", "mask"),
        "gspo": policy(policy_loss_type="gspo"),
        "value": with_gradient(lambda at: value(at, old_value, target, action_mask=MASK), TENSORS["value"]),
        "gae": (gae * MASK).tolist(),
        "gae.returns": (returns * MASK).tolist(),
        "reinforce": (module.get_cumulative_returns(None, TENSORS["reward"], MASK, DISCOUNT) * MASK).tolist(),
        "bradley_terry": with_gradient(lambda at: pairs(at, old_value[:, 0]), TENSORS["value"][:, 0]),
        **{f"kl.{name}": (kl(kl_estimator=name) * MASK).double().tolist() for name in ("k1", "k2", "k3")},
    }


@pytest.mark.parametrize(
    "formula",
    [
        *("ppo.token", "ppo.sequence", "ppo.dual", "ppo.tis", "ppo.icepop", "ppo.sequence_mask", "gspo", "value"),
        *("gae", "gae.returns", "reinforce", "bradley_terry", "kl.k1", "kl.k2", "kl.k3"),
    ],
)
def test_a_formula_is_the_same(theirs, formula):
    assert_equal(OURS[formula], theirs[formula])
