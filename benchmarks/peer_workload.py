"""The fixed work of `engine_vs_trl.py`: models, data and hyperparameters, the same for both sides.

Imported in two environments, so it needs torch and transformers only. Words of Python's own documentation and
library are the text; a word is a token. Protocol: a side does a step, prints a JSON line, and waits for a line.
"""

import json
import os
import pydoc_data.topics
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY, SPECIAL, END = 4096, 3, 2
SEQUENCE, SFT_ROWS = 256, 8
PAIR_TOKENS, PAIRS, SHORTEST = 128, 16, 16
PROMPT_TOKENS, ANSWER_TOKENS, ANSWERS, EPOCHS = 32, 32, 32, 4
ANSWERS_TO_ONE = 8
"""Of GRPO, to each prompt."""
KL_COEFFICIENT, VALUE_WEIGHT, CLIP, GAE_LAMBDA = 0.05, 0.1, 0.2, 0.95
RATE, PPO_RATE, BETAS, GRADIENT_CLIP = 1e-3, 1e-4, (0.9, 0.999), 1.0
PREFERENCE_MODELS = ("preference_model", "preference_model_varlen")
UNITS = {"sft": SFT_ROWS * SEQUENCE, **dict.fromkeys(PREFERENCE_MODELS, PAIRS), "ppo": ANSWERS, "grpo": ANSWERS}
UNIT_NAMES = {"sft": "tokens", **dict.fromkeys(PREFERENCE_MODELS, "pairs"), "ppo": "answers", "grpo": "answers"}
STAGES = tuple(UNITS)


@dataclass(frozen=True)
class Pair:
    """Two token sequences that begin with the same `shared` tokens."""

    chosen: list[int]
    rejected: list[int]
    shared: int


def words() -> list[int]:
    """A stream of tokens: the commonest words, rarer ones left out."""
    texts = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    library = Path(os.__file__).parent
    texts += [item.read_text(encoding="utf-8", errors="ignore") for item in sorted(library.glob("*.py"))[:120]]
    tokens = re.findall(r"\w+|[^\w\s]", "\n".join(texts))
    counts = sorted(Counter(tokens).items(), key=lambda item: (-item[1], item[0]))
    number = {word: SPECIAL + index for index, (word, _) in enumerate(counts[: VOCABULARY - SPECIAL])}
    return [number[word] for word in tokens if word in number]


def sft_rows(count: int) -> list[list[int]]:
    """Rows of SEQUENCE tokens."""
    stream = words()
    starts = random.Random(1)
    return [stream[at : at + SEQUENCE] for at in (starts.randrange(len(stream) - SEQUENCE) for _ in range(count))]


def pairs(count: int, *, same_length: bool) -> list[Pair]:
    """A piece of text and a scrambled one with the same beginning."""
    stream, draw, result = words(), random.Random(2), []
    for _ in range(count):
        at = draw.randrange(len(stream) - 2 * PAIR_TOKENS)
        lengths = [PAIR_TOKENS] * 2 if same_length else [draw.randint(SHORTEST, PAIR_TOKENS) for _ in range(2)]
        shared = PAIR_TOKENS // 2 if same_length else SHORTEST // 2
        chosen, tail = stream[at : at + lengths[0]], stream[at + shared : at + lengths[1]]
        result.append(Pair(chosen, chosen[:shared] + draw.sample(tail, len(tail)), shared))
    return result


def prompts(count: int) -> list[list[int]]:
    """Beginnings of answers."""
    stream, draw = words(), random.Random(3)
    return [
        stream[at : at + PROMPT_TOKENS] for at in (draw.randrange(len(stream) - PROMPT_TOKENS) for _ in range(count))
    ]


def config(scale: int, **more: Any) -> Any:
    """Llama of 1.9M parameters, or of about ten times that."""
    from transformers import LlamaConfig

    hidden, heads = {1: (128, 4), 10: (512, 8)}[scale]
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=4,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=END,
        attn_implementation="sdpa",
        **more,
    )


def causal_model(scale: int) -> Any:
    """The language model that is trained, and the reference."""
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(config(scale))


def scalar_model(scale: int) -> Any:
    """The preference model that is trained, and PPO's reward and value model."""
    import torch
    from transformers import LlamaForSequenceClassification

    torch.manual_seed(1)
    return LlamaForSequenceClassification(config(scale, num_labels=1))


def tokenizer() -> Any:
    """Words are decimal numbers, and each is its own token's number."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = {str(number): number for number in range(SPECIAL, VOCABULARY)} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    inner = Tokenizer(models.WordLevel(names, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )
    wrapped.chat_template = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    return wrapped


def even(answer: str) -> float:
    """GRPO's reward: the share of words that are even numbers."""
    numbers = answer.split()
    return sum(number[-1:] in "02468" for number in numbers) / max(len(numbers), 1)


def text(ids: list[int]) -> str:
    """Tokens as the tokenizer's words."""
    return " ".join(map(str, ids))


def cpu_seconds() -> float:
    """CPU seconds of this process, and of those that it has started in hundredths of a second, as Linux tells."""
    started, ticks = [os.getpid()], 0
    while started:
        number = started.pop()
        try:
            for task in Path(f"/proc/{number}/task").iterdir():
                started += [int(child) for child in (task / "children").read_text().split()]
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += 0 if number == os.getpid() else sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


class StepByStep:
    """Tells the parent of every step, and waits to be told to go on."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._began = 0.0

    def begin(self) -> None:
        """Everything is ready: the first step is next."""
        self._say({"ready": True})

    def done(self, metrics: dict[str, float]) -> None:
        """A step was done."""
        self._say({"cpu_s": cpu_seconds() - self._began, "metrics": metrics})

    def _say(self, line: dict[str, Any]) -> None:
        self._out.write(json.dumps(line) + "\n")
        if not sys.stdin.readline():
            sys.exit(0)
        self._began = cpu_seconds()
