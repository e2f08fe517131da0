"""PPO-ptx: a language-modelling loss beside PPO's, on data that the policy must not unlearn (Ouyang et al. 2022)."""

from collections.abc import Callable

from charter.spec.stage import PpoStage
from charter.train.models import TrainedModel
from charter.train.pretrain import language_loss
from charter.train.schedule import batch_rows
from charter.train.setup import Setup
from charter.train.sft import collate
from charter.train.supervised import BatchLoss
from charter.train.token_data import conversation_rows

ROLE = "ptx_data"


def pretraining_mix(setup: Setup, spec: PpoStage, policy: TrainedModel) -> Callable[[int], BatchLoss] | None:
    """Number of the policy update -> loss of this process's share of the rows that belong to it."""
    if not spec.ptx_weight:
        return None
    data = conversation_rows(setup.stage, policy.model.tokenizer, seq_len=spec.seq_len, ranks=setup.ranks, role=ROLE)
    setup.count_skipped(data.skipped)

    def loss(number: int) -> BatchLoss:
        rows = batch_rows(number, rows=len(data), batch=spec.ptx_batch, seed=setup.seed("ptx order"))
        chosen = [data[row] for row in setup.ranks.share(rows)]
        ids_BT, counted_BT = collate(chosen, padding=policy.model.padding_id)
        tokens = sum(len(row.ids) for row in chosen)
        call = policy.parallel.call
        return language_loss(call, ids_BT, counted_BT, dtype=spec.dtype, device=setup.device, tokens=tokens)

    return loss
