"""Bytes per accelerator while a stage that trains draws and scores answers, by its own weights or vLLM beside them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.engines import capabilities
from charter.physics.columns import Array, Layouts, array
from charter.physics.flops import kv_cache_bytes
from charter.physics.inference_memory import (
    DRAWING_BYTES,
    DRAWN_LOGITS,
    PASS_TOKENS,
    SCORING_TOKENS,
    grown_columns,
    read_bytes,
)
from charter.physics.memory_shape import ModelColumns, rank_columns
from charter.physics.serving_devices import SERVER
from charter.physics.shapes import count_parameters
from charter.physics.step_time import distinct
from charter.physics.terms import Term, bytes_term
from charter.plan.phase import Role, RolePhase, Workload
from charter.spec.layout import Layout
from charter.spec.stage_base import NATIVE
from charter.units import GIB


@dataclass(frozen=True, kw_only=True)
class ServerBeside:
    """vLLM on accelerators of a trainer, which keeps its share of their memory for the time of the stage."""

    memory_share: float
    everywhere: bool
    """Beside every data rank; else beside the first alone."""

    def replicas(self, data: int) -> int:
        """Servers that share a batch, of a trainer with so many data ranks."""
        return data if self.everywhere else 1

    def together(self, role: Role, phase: RolePhase, data: int, accelerator: Accelerator) -> int:
        """Sequences that one server decodes at once: its share, vLLM's own limit, or as many as its memory holds."""
        free = self.memory_share * accelerator.memory_bytes - _served_weights(role)
        share, most = ceil(phase.batch / self.replicas(data)), SERVER.most_sequences
        return max(1, min(share, most, int(free / kv_cache_bytes(role.architecture, phase.longest_tokens))))

    def memory(self, role: Role, phase: RolePhase, accelerator: Accelerator) -> Term:
        """Its share of the fullest accelerator; all of it where the policy's weights do not fit into the share."""
        share, weights = self.memory_share * accelerator.memory_bytes, _served_weights(role)
        fits = weights + kv_cache_bytes(role.architecture, phase.longest_tokens) <= share
        refusal = f"; {weights / GIB:.1f} GiB of weights and one answer do not fit into it"
        return bytes_term(
            name="vLLM beside the trainer",
            part="kv_cache",
            value=share if fits else accelerator.memory_bytes,
            formula=f"{self.memory_share:g} of {accelerator.memory_bytes / GIB:.1f} GiB{'' if fits else refusal}",
            source="gpu_memory_utilization: weights in 16 bits, keys and values, work space",
        )


def server_of(phase: RolePhase, engine: str) -> ServerBeside | None:
    """The server that generates a phase beside the trainer, where the stage asks for one and its engine has it."""
    does = capabilities(engine)
    if not (phase.served and does.vllm_share):
        return None
    return ServerBeside(memory_share=does.vllm_share, everywhere=does.vllm_everywhere)


def _served_weights(role: Role) -> float:
    return 2.0 * count_parameters(role.architecture).total


def generation_terms(role: Role, phase: RolePhase, layout: Layout, sequences: int) -> list[tuple[str, Term]]:
    """A bf16 copy of the policy, gathered for decoding, and the keys and values of what is decoded together."""
    one = Layouts.of([layout])
    gathered, cache = float(gathered_bytes(role, one)[0]), float(cache_bytes(role, phase, one)[0])
    count = array(float(sequences))
    reading = float(reading_bytes(role, phase, one, count)[0])
    written = float(written_bytes(role, phase, one, count)[0])
    terms = [
        bytes_term(
            name="weights gathered for generation",
            part="buffers",
            value=gathered,
            formula=f"2 B x {gathered / 2:,.0f}",
            source="decoding reads every weight for every token, so shards are gathered once per rollout",
        ),
        bytes_term(
            name="keys and values",
            part="kv_cache",
            value=cache * sequences,
            formula=f"{sequences} sequences of {phase.longest_tokens:,.0f} tokens and room to grow x {cache:,.0f} B",
            source="2 x layers x kv_heads x head_dim x bytes / TP",
        ),
        bytes_term(
            name="logits, or a layer given room",
            part="logits",
            value=written - cache * sequences,
            formula=f"logits of {sequences} tokens, {DRAWING_BYTES:g} B for each of {DRAWN_LOGITS:,} of them at most",
            source="inference/generate.py: tokens are drawn in fp64, some rows at a time",
        ),
        bytes_term(
            name="prompts that are read",
            part="activations",
            value=max(reading - written, 0.0),
            formula="one layer's values and keys and values of the prompts, beyond what answers need",
            source="all prompts in one pass; some at a time where weights are whole",
        ),
    ]
    return [(role.name, term) for term in terms if term.value]


def scoring_term(role: Role, phase: RolePhase, layout: Layout) -> Term:
    """A pass over answers, as a term."""
    value = float(scoring_bytes(role, phase, Layouts.of([layout]))[0])
    return bytes_term(
        name="answers that are scored",
        part="activations",
        value=value,
        formula=f"one layer's values of at most {SCORING_TOKENS:,.0f} tokens, and two layers gathered under ZeRO-3",
        source="inference/score.py: a pass without a backward one",
    )


def gathered_bytes(role: Role, layouts: Layouts) -> Array:
    """Bytes of a rank's weights in 16 bits, as they are decoded with."""
    unsplit = replace(layouts, pipeline=array(1.0))
    model = ModelColumns.of(role.architecture, scalar_head=role.scalar_head)
    return 2.0 * rank_columns(model, unsplit, stage="first", layers=model.layers).total


def cache_bytes(role: Role, phase: RolePhase, layouts: Layouts) -> Array:
    """Bytes of the keys and values of one answer at its longest, with columns that they have yet to grow into."""
    return _columns_bytes(role, phase, layouts, lambda last, _: last)


def _copied_bytes(role: Role, phase: RolePhase, layouts: Layouts) -> Array:
    """Bytes of one layer's keys and values of an answer, which are there twice while they are given room."""
    layers = role.architecture.attention_layers
    return _columns_bytes(role, phase, layouts, lambda _, before: before) / max(layers, 1) * (layers > 0)


def _columns_bytes(role: Role, phase: RolePhase, layouts: Layouts, columns: Callable[[float, float], float]) -> Array:
    rows, which = distinct([layouts.tensor, _is_whole(layouts)])
    prompt, each = max(phase.prompt_tokens, 1.0), []
    for row in rows:
        grown = grown_columns(prompt, phase.longest_tokens, joint=bool(_is_whole(layouts)[row]))
        each.append(kv_cache_bytes(role.architecture, columns(*grown), tensor=int(layouts.tensor[row])))
    return array(each)[which]


def written_bytes(role: Role, phase: RolePhase, layouts: Layouts, sequences: Array) -> Array:
    """Bytes of keys and values at the last token, and of what more is there: a layer's copy or what is drawn from."""
    cache, copied = cache_bytes(role, phase, layouts), _copied_bytes(role, phase, layouts)
    return array(cache * sequences + np.maximum(copied * sequences, _drawing_bytes(role, layouts, sequences)))


def _is_whole(layouts: Layouts) -> Array:
    """1 where a process has all weights as they are, and decodes by joint products."""
    return array((layouts.zero == 0) & (layouts.tensor == 1))


def _drawing_bytes(role: Role, layouts: Layouts, sequences: Array) -> Array:
    """Bytes of a token's logits of every answer, and of the probabilities of those that are drawn from at once."""
    logits = array(sequences * role.vocab_size)
    return array(_logit_bytes(layouts) * logits + _drawn_bytes(role, logits))


def _logit_bytes(layouts: Layouts) -> Array:
    """Bytes of a logit that waits: in fp32, and in 16 bits in the memory of a graph where there may be one."""
    return array(4.0 + 2.0 * _is_whole(layouts))


def _drawn_bytes(role: Role, logits: Array) -> Array:
    return array(DRAWING_BYTES * np.minimum(logits, max(DRAWN_LOGITS, role.vocab_size)))


def is_scored(work: Workload, phase: RolePhase, engine: str) -> bool:
    """Return True if a reward model reads whole answers here; what else reads does so as updates do."""
    if phase.work != "score" or engine != NATIVE or phase.role in work.remote or not work.together:
        return False
    role = work.role(phase.role)
    return role.scalar_head and not role.trained


def scoring_bytes(role: Role, phase: RolePhase, layouts: Layouts) -> Array:
    """Bytes of a pass over answers: as many as may be scored at once, one at least."""
    tokens = np.minimum(SCORING_TOKENS, np.ceil(phase.batch / layouts.data) * phase.longest_tokens)
    model = ModelColumns.of(role.architecture, scalar_head=True)
    layer = rank_columns(model, layouts, stage="first", layers=model.layers).layer_unit
    gathered = np.where(layouts.zero >= 3, 2 * 2.0 * layer, 0.0)
    return array(_stream_bytes(role, layouts) * np.maximum(tokens, phase.longest_tokens) + gathered)


def drawn_at_once(role: Role, phase: RolePhase, layouts: Layouts, free_bytes: Array) -> Array:
    """Answers of one replica that are decoded together: its share, or as many as their caches and prompts have room.

    Where there are more than one prompt has, answers to one prompt stay together, so that it is read once.
    """
    prompt = max(phase.prompt_tokens, 1.0)
    reading = cache_bytes(role, replace(phase, longest_tokens=prompt), layouts)
    stream = _stream_bytes(role, layouts)
    read = free_bytes / (reading + stream * prompt * phase.read_share)
    is_whole = _is_whole(layouts) > 0
    some = (free_bytes - stream * max(PASS_TOKENS, prompt)) / reading
    read = np.where(is_whole, np.maximum(read, some), read)
    share = np.ceil(phase.batch / layouts.data)
    cache, drawn = cache_bytes(role, phase, layouts), _drawn_bytes(role, array(share * role.vocab_size))
    written = (free_bytes - drawn) / (cache + _logit_bytes(layouts) * role.vocab_size)
    copied = free_bytes / (cache + _copied_bytes(role, phase, layouts))
    room = np.floor(np.minimum(np.minimum(written, copied), read))
    each = max(1, round(1 / phase.read_share))
    room = np.where(room > each, room - room % each, room)
    return array(np.maximum(1.0, np.minimum(np.minimum(share, phase.decode_batch or np.inf), room)))


def reading_bytes(role: Role, phase: RolePhase, layouts: Layouts, sequences: Array) -> Array:
    """Bytes while prompts are read, those of answers to one prompt once: one layer's, and keys and values of all."""
    prompt = max(phase.prompt_tokens, 1.0)
    tokens = np.maximum(sequences * prompt * phase.read_share, prompt)
    tokens = np.where(_is_whole(layouts) > 0, np.minimum(tokens, max(PASS_TOKENS, prompt)), tokens)
    cache = cache_bytes(role, replace(phase, longest_tokens=prompt), layouts) * sequences
    return array(_stream_bytes(role, layouts) * tokens + cache)


def _stream_bytes(role: Role, layouts: Layouts) -> Array:
    """Bytes of a layer per token that is only read; the stream is as wide as the embedding that it comes from."""
    stream = array(np.where(_is_whole(layouts) > 0, 4.0, 2.0))
    return read_bytes(role.architecture, stream=stream, tensor=layouts.tensor)
