"""What is held of each row: why it cannot be kept whatever the others are, or the hashes that it is compared by."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from charter.feedback.prepare_held_out import HeldOut
from charter.feedback.prepare_minhash import Sketcher
from charter.feedback.prepare_rows import Candidate
from charter.feedback.prepare_words import exact_key, runs_of_parts, words_of
from charter.spec.stage import PrepareStage

EMPTY, TOO_SHORT, TOO_LONG, OVERLAP = "empty", "too_short", "too_long", "overlap"
"""Reasons that a row has in itself, or beside the evaluation sets."""


@dataclass(frozen=True)
class Digester:
    """Looks at one row at a time; what it finds depends on the row, the spec and the evaluation sets alone."""

    spec: PrepareStage
    held_out: HeldOut
    sketcher: Sketcher | None

    def digest(self, row: Candidate) -> Mapping[str, Any]:
        """A row as plain JSON: `characters`, and either `reason` or the hashes, in hexadecimal."""
        fault = self._fault(row)
        if fault is not None:
            return {"characters": row.characters, "reason": fault}
        texts = (row.prompt, *row.answers)
        words = tuple(words_of(text) for text in texts)
        other = self.held_out.first_shared(row, words)
        if other is not None:
            return {"characters": row.characters, "reason": OVERLAP, "other": other}
        found: dict[str, Any] = {"characters": row.characters}
        if self.spec.exact_duplicates:
            found["exact"] = exact_key(row.parts).hex()
        if self.sketcher is not None:
            parts = words if row.parts == texts else tuple(words_of(text) for text in row.parts)
            signature, bands = self.sketcher.sketch(runs_of_parts(parts))
            found |= {"signature": signature.tobytes().hex(), "bands": bands.astype("<u8").tobytes().hex()}
        return found

    def _fault(self, row: Candidate) -> str | None:
        if row.empty:
            return EMPTY
        if min(len(text.strip()) for text in (row.prompt, *row.answers)) < self.spec.min_characters:
            return TOO_SHORT
        if self.spec.max_characters is not None and row.characters > self.spec.max_characters:
            return TOO_LONG
        return None
