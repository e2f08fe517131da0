"""Processor cores of a node that keep data loading hidden behind the accelerators."""

TOKENISED_SECONDS_PER_TOKEN = 5e-8
"""CPU time to read, collate and copy one token that is stored as a number, packed end to end: a worker takes about
0.1 ms of Python for a sequence of 2,048. Judgement."""
TEXT_SECONDS_PER_TOKEN = 2.8e-6
"""CPU time to tokenise text as it is read: a compiled byte-level BPE does about 1.5 MB of text per second and core (the
README of Hugging Face tokenizers: 1 GB in under 20 s on a server, read as 32 cores), at 4.2 bytes per token. Judgement
within a factor of two; slow (pure Python) tokenizers take twenty times as long."""


def loader_cores(tokens_per_second: float, *, seconds_per_token: float = TEXT_SECONDS_PER_TOKEN) -> float:
    """Cores that deliver so many tokens a second: `tokens per second x CPU seconds per token`.

    Holds while workers do not wait for the disk; add one core per process that only feeds its accelerator.

    >>> round(loader_cores(100_000), 3), loader_cores(100_000, seconds_per_token=TOKENISED_SECONDS_PER_TOKEN)
    (0.28, 0.005)
    """
    return tokens_per_second * seconds_per_token
