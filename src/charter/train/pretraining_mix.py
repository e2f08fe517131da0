"""PPO-ptx: a language-modelling loss beside PPO's, on data that the policy must not unlearn (Ouyang et al. 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass

from charter.models.chat import Encoded
from charter.spec.ppo_stage import PpoStage
from charter.train.models import TrainedModel
from charter.train.pretrain import language_loss
from charter.train.schedule import batch_rows
from charter.train.setup import Setup
from charter.train.supervised import BatchLoss
from charter.train.token_data import TokenRows, collate, conversation_rows

ROLE = "ptx_data"


@dataclass(frozen=True)
class PretrainingMix:
    """The rows of `ptx_data`, and their loss under the policy."""

    setup: Setup
    spec: PpoStage
    policy: TrainedModel
    rows: TokenRows

    def parts(self, number: int) -> list[list[Encoded]]:
        """This process's rows of one policy update, as the micro-batches of the layout."""
        batch = batch_rows(number, rows=len(self.rows), batch=self.spec.ptx_batch, seed=self.setup.seed("ptx order"))
        own = [self.rows[row] for row in self.setup.ranks.share(batch)]
        return [own[start:stop] for start, stop in self.setup.layout.micro_batches(len(own))]

    def loss(self, rows: Sequence[Encoded]) -> BatchLoss:
        """Summed language-modelling loss of some rows."""
        ids_BT, counted_BT = collate(rows, padding=self.policy.model.padding_id)
        tokens = sum(len(row.ids) for row in rows)
        call, dtype = self.policy.parallel.call, self.spec.dtype
        return language_loss(call, ids_BT, counted_BT, dtype=dtype, device=self.setup.device, tokens=tokens)


def counted_tokens(rows: Sequence[Encoded]) -> int:
    """Tokens that the loss counts; never the first of a row, which nothing predicts."""
    return sum(sum(row.is_answer[1:]) for row in rows)


def pretraining_mix(setup: Setup, spec: PpoStage, policy: TrainedModel) -> PretrainingMix | None:
    """The mix that a stage asks for, its data tokenised; None where it asks for none."""
    if not spec.ptx_weight:
        return None
    data = conversation_rows(setup.stage, policy.model.tokenizer, seq_len=spec.seq_len, ranks=setup.ranks, role=ROLE)
    setup.count_skipped(data.skipped)
    return PretrainingMix(setup, spec, policy, data)
