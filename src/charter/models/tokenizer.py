"""Tokenizers: train a byte-level BPE on a project's own texts; read and write Hugging Face's files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from charter.errors import DataError

END_OF_TEXT, USER, ASSISTANT, PADDING = "<|endoftext|>", "<|user|>", "<|assistant|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|endoftext|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Any:
    """A byte-level BPE tokenizer with a two-role chat template (Sennrich et al. 2016; GPT-2's byte alphabet).

    Every byte string can be written, so there is no unknown token; the roles are special tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PADDING, END_OF_TEXT, USER, ASSISTANT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=END_OF_TEXT, bos_token=END_OF_TEXT, pad_token=PADDING
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def load_tokenizer(path: Path) -> Any:
    """The tokenizer saved beside a model, with a padding token."""
    from transformers import AutoTokenizer

    if not any((path / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise DataError(f"{path}: no tokenizer here (tokenizer.json or tokenizer_config.json); copy the model's files")
    tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        raise DataError(f"{path}: the tokenizer has no chat template; choose an instruct model or add one")
    return tokenizer
