"""Facts of a run in notes and public model cards: tokens, samples, steps, epochs, price."""

from __future__ import annotations

import re
from statistics import median

from charter.catalog.accelerators import Accelerator
from charter.catalog.price_book import Market, offers
from charter.validation.rows.measurement import Measurement

_UNITS = {"": 1.0, "k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "b": 1e9, "billion": 1e9, "t": 1e12}
_UNITS |= {"trillion": 1e12}
_UNIT = r"(k|m|b|t|thousand|million|billion|trillion)?"
_NUMBER = rf"(\d[\d,]*(?:\.\d+)?)\s*{_UNIT}\+?"

KNOWN_TOKENS: tuple[tuple[str, float], ...] = (
    (r"codellama.*70", 1.0e12),
    (r"codellama", 5.0e11),
    (r"tinyllama", 3.0e12),
    (r"open-?llama", 1.0e12),
    (r"llama[- ]?2(?!\d)", 2.0e12),
    (r"llama[- ]?3\.2.*\b[13]b", 9.0e12),
    (r"llama[- ]?3\.[123]", 15.0e12),
    (r"llama[- ]?4.*scout", 40e12),
    (r"llama[- ]?4.*maverick", 22e12),
    (r"llama[- ]?3(?!\d)", 15.0e12),
    (r"llama[^\d]*(30|33|65)b", 1.4e12),
    (r"llama[^\d]*(7|13)b", 1.0e12),
    (r"opt-?175", 3.0e11),
    (r"\bopt-", 1.8e11),
    (r"bloom", 3.66e11),
    (r"pythia", 3.0e11),
    (r"gpt-?neox-?20", 4.72e11),
    (r"gpt-?j", 4.02e11),
    (r"gpt-?3.*175|gpt-?175", 3.0e11),
    (r"mpt-?(7|30)b", 1.0e12),
    (r"falcon.*180", 3.5e12),
    (r"falcon.*40", 1.0e12),
    (r"falcon-?7", 1.5e12),
    (r"deepseek[- ]?v3(?!\.\d)", 14.8e12),
    (r"deepseek[- ]?v2.*lite", 5.7e12),
    (r"deepseek[- ]?v2", 8.1e12),
    (r"deepseek.*(7|67)b", 2.0e12),
    (r"olmo[- ]?2.*32", 6.0e12),
    (r"olmo[- ]?2.*13", 5.0e12),
    (r"olmo[- ]?2", 4.0e12),
    (r"olmoe", 5.1e12),
    (r"olmo", 2.5e12),
    (r"qwen[- ]?3(?!\.\d)", 36e12),
    (r"qwen[- ]?2\.5", 18e12),
    (r"qwen[- ]?2(?!\.\d)", 7e12),
    (r"gemma[- ]?3.*27", 14e12),
    (r"gemma[- ]?3.*12", 12e12),
    (r"gemma[- ]?3.*4", 4e12),
    (r"gemma[- ]?3.*1", 2e12),
    (r"gemma[- ]?2.*27", 13e12),
    (r"gemma[- ]?2.*9", 8e12),
    (r"gemma[- ]?2.*2b", 2e12),
    (r"gemma.*7", 6e12),
    (r"phi-?2", 1.4e12),
    (r"phi-?3.*mini", 3.3e12),
    (r"phi-?3.*(small|medium)", 4.8e12),
    (r"phi-?4(?!.*mini)", 9.8e12),
    (r"dbrx", 12e12),
    (r"smollm[- ]?3", 11.2e12),
    (r"smollm[- ]?2.*1\.7", 11e12),
    (r"starcoder(?![- ]?2)", 1.0e12),
    (r"starcoder[- ]?2.*15", 4.0e12),
    (r"stablelm.*(4e1t|3b)", 4.0e12),
    (r"redpajama.*7b", 1.0e12),
    (r"redpajama.*3b", 8.0e11),
    (r"nemotron-?4.*340", 9e12),
    (r"nemotron-?4.*15", 8e12),
    (r"nemotron-?h.*56", 20e12),
    (r"nemotron-?h.*8", 15e12),
    (r"\byi-?(6|9|34)", 3.1e12),
    (r"\bamber", 1.26e12),
    (r"\bk2-?65", 1.4e12),
    (r"kimi[- ]?k2", 15.5e12),
    (r"glm-?130", 4.0e11),
    (r"apertus", 15e12),
    (r"\bpalm", 7.8e11),
    (r"chinchilla", 1.4e12),
    (r"gopher", 3.0e11),
    (r"mt-?nlg|megatron-?turing", 2.7e11),
    (r"baichuan[- ]?2", 2.6e12),
    (r"internlm[- ]?2", 2.6e12),
    (r"cerebras-?gpt.*13", 2.57e11),
    (r"granite-?3.*8", 12e12),
    (r"dclm.*7", 2.6e12),
    (r"xgen", 1.5e12),
)
"""Training tokens that model cards and papers state; used where a row names a model and no tokens. From memory."""


def amount(text: str, noun: str) -> float | None:
    """The number in front of a noun: `1.4T tokens`, `131.9k prompts`, `15 trillion tokens`.

    >>> amount("131.9k prompts x (256 in + 256 out fixed), 1 epoch, 135M tokens", "tokens")
    135000000.0
    >>> amount("trained on 15 trillion tokens", "tokens"), amount("no number", "steps")
    (15000000000000.0, None)
    """
    match = re.search(rf"{_NUMBER}\s*(?:of\s+|training\s+|optimizer\s+|unique\s+)*(?:{noun})\b", text, re.I)
    if not match:
        return None
    return float(match[1].replace(",", "")) * _UNITS[(match[2] or "").casefold()]


def tokens_of(row: Measurement) -> float | None:
    """Tokens of the whole run: from the notes, else what is publicly known of the model (pretraining only)."""
    said = amount(_without_rates(row.notes), "tokens|tok") or amount(row.model, "tokens|tok")
    if said and said > 1e6:
        return said
    if row.kind != "run_total":
        return None
    named = re.sub(r"[_ ]+", "-", row.model.casefold())
    if re.search(r"distill|deepseek-r1", named):
        return None
    return next((tokens for pattern, tokens in KNOWN_TOKENS if re.search(pattern, named)), None)


def _without_rates(notes: str) -> str:
    """Notes without batches (`batch 4M tokens`) and rates (`380 tok/s`)."""
    notes = re.sub(r"batch(?: size)?(?: of)?\s*[~=:]?\s*" + _NUMBER + r"\s*tok\w*", "", notes, flags=re.I)
    notes = re.sub(r"~?" + _NUMBER + r"\s*tok(?:ens)?\s*/\s*\S+", "", notes, flags=re.I)
    return re.sub(_NUMBER + r"\s*tok(?:ens)?\s*(?:per|a)\s+\w+", "", notes, flags=re.I)


def batch_tokens_of(row: Measurement) -> float | None:
    """Tokens of a global batch as the notes say it.

    >>> batch_tokens_of(Measurement(id="X-1", metric="gpu_hours", value=1.0, notes="seq 2048, batch 4M tokens"))
    4000000.0
    """
    match = re.search(r"batch(?: size)?(?: of)?\s*[~=:]?\s*" + _NUMBER + r"\s*tok", row.notes, re.I)
    return float(match[1].replace(",", "")) * _UNITS[(match[2] or "").casefold()] if match else None


def usd_per_accelerator_hour(row: Measurement, accelerator: Accelerator) -> float | None:
    """A price the row states, else the on-demand price of the cloud it names, else the median over clouds.

    The price of a cloud is that of its cheapest region; a price that a note derives from the cost itself is not read.
    """
    devices = "GPU|accelerator|chip|device"
    stated = re.search(rf"(?<!about )\$\s?(\d+(?:\.\d+)?)\s*(?:per|/)\s*(?:{devices})[- ]?h", row.notes)
    if stated:
        return float(stated[1])
    prices: dict[str, float] = {}
    for offer in offers(accelerator.name, market=Market.ON_DEMAND):
        price = offer.usd_per_accelerator_hour(Market.ON_DEMAND)
        if price is not None:
            prices[offer.cloud] = min(price, prices.get(offer.cloud, price))
    text = f"{row.notes} {row.source} {row.interconnect}".casefold()
    named = [price for cloud, price in prices.items() if cloud in text]
    if named:
        return named[0]
    return median(prices.values()) if prices else None
