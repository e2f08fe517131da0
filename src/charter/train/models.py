"""The model that a stage starts from: fresh from an architecture, or read from a directory."""

from charter.artifacts.draws import draw_seed
from charter.artifacts.job import Job, JobInput
from charter.errors import DataError
from charter.models.language_model import LanguageModel, load_language_model, new_language_model
from charter.models.tokenizer import train_tokenizer
from charter.spec.dataset import read_texts


def starting_model(job: Job, *, role: str = "init") -> LanguageModel:
    """The language model named by `role`."""
    item = job.only(role)
    if item.model is not None and item.model.architecture is not None:
        return _fresh_model(job, item)
    return load_language_model(item.location())


def _fresh_model(job: Job, item: JobInput) -> LanguageModel:
    model = item.model
    assert model is not None
    assert model.architecture is not None
    if model.tokenizer is None:
        raise DataError(
            f"model {item.name!r} is an architecture without a tokenizer; add `tokenizer: {{train_on: [...]}}`"
        )
    texts = [
        turn.content
        for source in job.inputs.get("tokenizer", ())
        if source.name in model.tokenizer.train_on
        for conversation in read_texts(source.location(), source.data)
        for turn in conversation.turns
    ]
    if not texts:
        raise DataError(
            f"model {item.name!r}: none of {', '.join(model.tokenizer.train_on)} has text for the tokenizer"
        )
    tokenizer = train_tokenizer(texts, vocab_size=model.tokenizer.vocab_size)
    return new_language_model(model.architecture, tokenizer, seed=draw_seed(job.seed, "weights", item.role))
