"""What a published preference model and an engine's own reward model say of the same answers."""

from typing import Any

TALKS = (("How do I bake bread?", "Read a book."), ("Hi", "No."), ("What now?", "Wait, and see what comes of it."))


def scores_of(ours: Any, theirs: Any) -> tuple[Any, Any]:
    """The scores of our preference model, and those of a sequence classifier of transformers."""
    import torch

    from charter.data.dataset import Turn
    from charter.inference.score import encode_scored, score_rows

    encoded = [encode_scored(ours, [Turn("user", turn)], answer, max_tokens=64) for turn, answer in TALKS]
    rows, lengths = [ids for ids, _ in encoded], [count for _, count in encoded]
    with torch.no_grad():
        ours.scalar.eval()
        found = score_rows(ours, rows, lengths)
        return found, torch.tensor([theirs(input_ids=torch.tensor([ids])).logits.item() for ids in rows])
