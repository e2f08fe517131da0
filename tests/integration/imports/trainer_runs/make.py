"""How the states beside it were made: tiny TRL runs on a CPU, one of them stopped and resumed.

In `.engines/huggingface` (TRL 1.16.0, transformers 5.23.0, CPU): `python make.py TOKENIZER_DIR OUT`.
"""

import json
import shutil
import sys
from pathlib import Path

from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
COMMON = {"use_cpu": True, "logging_steps": 1, "report_to": "none", "seed": 7, "bf16": False, "eval_strategy": "steps"}


def sft(tokenizer, out, *, until, resume):
    rows = [{"input_ids": [3 + (n * k) % 90 for k in range(1, 9 + n % 7)]} for n in range(64)]
    arguments = SFTConfig(
        output_dir=str(out), max_steps=until, per_device_train_batch_size=4, save_steps=5, eval_steps=5,
        include_num_input_tokens_seen="no", **COMMON,
    )  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(vocab_size=tokenizer.vocab_size, **SHAPE))
    data = Dataset.from_list(rows)
    trainer = SFTTrainer(
        model, arguments, train_dataset=data, eval_dataset=data.select(range(8)), processing_class=tokenizer
    )
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_state()


def reward(tokenizer, out):
    rows = [{"chosen_input_ids": [5, 6 + n % 20, 7], "rejected_input_ids": [8, 9 + n % 9]} for n in range(32)]
    rows = [{"chosen_ids": row["chosen_input_ids"], "rejected_ids": row["rejected_input_ids"]} for row in rows]
    arguments = RewardConfig(output_dir=str(out), max_steps=4, per_device_train_batch_size=2, save_steps=2,
                             **{**COMMON, "eval_strategy": "no"})  # fmt: skip
    model = LlamaForSequenceClassification(
        LlamaConfig(vocab_size=tokenizer.vocab_size, num_labels=1, pad_token_id=0, **SHAPE)
    )
    trainer = RewardTrainer(model, arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.train()
    trainer.save_state()


def main(tokenizer_dir, out):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_dir)
    work = out / "work"
    sft(tokenizer, work / "first", until=7, resume=None)
    kept = work / "first" / "checkpoint-5"
    shutil.copy(kept / "trainer_state.json", out / "sft_checkpoint_5.json")
    sft(tokenizer, work / "first", until=12, resume=str(kept))
    shutil.copy(work / "first" / "trainer_state.json", out / "sft_resumed.json")
    reward(tokenizer, work / "reward")
    shutil.copy(work / "reward" / "trainer_state.json", out / "reward.json")
    shutil.rmtree(work)
    print(json.dumps({path.name: path.stat().st_size for path in out.glob("*.json")}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
