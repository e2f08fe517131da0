"""Run by the engine's own Python in an empty directory: a tiny language model, a reward model, and rows for both."""

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

LETTERS = {chr(33 + index): index + 3 for index in range(90)}
SPECIAL = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "\u0120": 93, "\u010a": 94}
CHAT = (
    "{% for turn in messages %}{{ turn['role'] }}: {{ turn['content'] }}"
    "{% if turn['role'] == 'assistant' %}<eos>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SHAPE = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROWS = 64


def tokenizer():
    tokens = Tokenizer(models.BPE(vocab=LETTERS | SPECIAL, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
    found.chat_template = CHAT
    return found


def main():
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained("base")
    LlamaForSequenceClassification(LlamaConfig(**SHAPE, num_labels=1)).save_pretrained("reward")
    for name in ("base", "reward"):
        tokenizer().save_pretrained(name)
    draw = random.Random(1)
    texts = ["".join(draw.choice("abcdefg_") for _ in range(8)) for _ in range(ROWS)]
    prompts = [{"prompt": [{"role": "user", "content": text}]} for text in texts]
    rows = []
    for _ in range(ROWS):
        ids = [draw.randrange(3, 93) for _ in range(draw.randrange(8, 30))]
        rows.append({"input_ids": ids, "assistant_masks": [0] * 5 + [1] * (len(ids) - 5)})
    for name, found in (("prompts", prompts), ("data", rows)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))


if __name__ == "__main__":
    main()
