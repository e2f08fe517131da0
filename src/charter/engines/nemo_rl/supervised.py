"""NeMo RL's SFT, reward model and DPO.

Read in nemo_rl/algorithms/{sft,rm,dpo}.py.
"""

from charter.engines.common.mapping import FieldMapper
from charter.engines.common.sheet import Sheet
from charter.engines.nemo_rl.policy import check_machine, map_policy
from charter.engines.nemo_rl.run import map_run
from charter.spec.stage import DpoStage, PreferenceModelStage, SftStage

LENGTH = ("stage.epochs", "stage.steps")
PAIRS = 2


def sft_sheet(mapper: FieldMapper, stage: SftStage) -> Sheet:
    """`examples/run_sft.py`."""
    sheet = Sheet(mapper, "sft.yaml")
    map_run(sheet, "sft", length_fields=LENGTH)
    sheet.put("sft.only_unmask_final", False)
    _policy(sheet, sequences_per_row=1)
    _data(sheet, "openai_format", processor="sft_processor")
    for name in ("add_bos", "add_eos", "add_generation_prompt"):
        sheet.put(f"data.{name}", False)
    mapper.same("stage.packing", False, "its batches count conversations, packed or not")
    return sheet


def reward_sheet(mapper: FieldMapper, stage: PreferenceModelStage) -> Sheet:
    """`examples/run_rm.py`."""
    sheet = Sheet(mapper, "rm.yaml")
    map_run(sheet, "rm", length_fields=LENGTH)
    _policy(sheet, sequences_per_row=PAIRS)
    sheet.put("policy.reward_model_cfg", {"enabled": True, "reward_model_type": "bradley_terry"})
    _data(sheet, "PreferenceDataset")
    same = mapper.same
    same("stage.pooling", "last", "its reward model is a sequence classifier, which reads the last token")
    same("stage.head_learning_rate_ratio", 1.0, "all parameters have one learning rate")
    same("stage.label_smoothing", 0.0, "its Bradley-Terry loss takes labels as they are")
    same("stage.use_margin", False, "its Bradley-Terry loss has no margin")
    same("stage.center_weight", 0.0, "its Bradley-Terry loss has no such term")
    mapper.charter("stage.context", "how much of a conversation a row holds is decided when the file is written")
    mapper.charter("stage.shuffle_labels", "labels are permuted when the file is written")
    return sheet


def dpo_sheet(mapper: FieldMapper, stage: DpoStage) -> Sheet:
    """`examples/run_dpo.py`."""
    sheet = Sheet(mapper, "dpo.yaml")
    map_run(sheet, "dpo", length_fields=LENGTH)
    _policy(sheet, sequences_per_row=PAIRS)
    _data(sheet, "PreferenceDataset")
    sheet.as_is("stage.beta", "dpo.reference_policy_kl_penalty")
    for name, value in (("preference_loss_weight", 1.0), ("sft_loss_weight", 0.0)):
        sheet.put(f"dpo.{name}", value)
    for name in ("preference_average_log_probs", "sft_average_log_probs"):
        sheet.put(f"dpo.{name}", False)
    mapper.same("stage.label_smoothing", 0.0, "its loss takes labels as they are (DPOLossFn)")
    return sheet


def _policy(sheet: Sheet, *, sequences_per_row: int) -> None:
    mapper = sheet.mapper
    check_machine(sheet)
    map_policy(sheet, "init", sequences_per_row=sequences_per_row, batch_field="stage.global_batch")
    mapper.same("stage.dropout", 0.0, "the model is trained as it is, without dropout of its own")
    note = "longer rows do not count in its loss, so none is written"
    sheet.as_is("stage.seq_len", "policy.max_total_sequence_length", "data.max_input_seq_length", note=note)


def _data(sheet: Sheet, dataset: str, *, processor: str | None = None) -> None:
    train: dict[str, object] = {"dataset_name": dataset, "data_path": sheet.mapper.handover.paths.data["data"]}
    sheet.computed("stage.data", {"data.train": train}, "one file of JSON lines, each row as often as it is used")
    default: dict[str, object] = {"prompt_file": None, "system_prompt_file": None}
    sheet.put("data.default", default | ({"processor": processor} if processor else {}))
    sheet.put("data.validation", None)
    sheet.put("data.shuffle", False)
    sheet.put("data.num_workers", 1)
