"""Peak bytes of a stage that trains on the processors of one machine, under the native engine.

Everything is exact but for a few hidden states beside the layers: the engine frees gradients after every update, makes
the loss in chunks of positions from hidden states (`models/token_forward.py`), and trains the models of a stage one
after another. Several processes hold everything once each, and their gradients all the time: those are the buckets that
are summed. Counts of hidden states were measured with every allocation noted, models of 0.1 to 16 million parameters
(benchmarks/planner_vs_engine.py), and hold within 0.3 of one."""

from dataclasses import replace

from charter.physics.flops import kv_cache_bytes
from charter.physics.memory_terms import CPU_PROCESS_BYTES
from charter.physics.shapes import adapter_parameters, count_parameters
from charter.physics.terms import Term
from charter.plan.physics.cpu_batch import FP32, SOURCE, batch_terms, bytes_term, logit_term
from charter.plan.physics.fit import Peak
from charter.plan.work.phase import Phase, Role, Workload
from charter.spec.layout import Layout

MOMENTS = 8.0


def training_peak(work: Workload, layout: Layout) -> Peak:
    """The fullest moment of a stage, fp32 throughout; roles are trained in their order, and all step at the end."""
    states = [(role.name, term) for role in work.roles for term in _state(role, work)]
    gradients = tuple((role.name, _gradients(role)) for role in work.trained)
    always = [
        *states,
        ("", bytes_term("process", "overhead", CPU_PROCESS_BYTES, "torch and transformers", "assumption")),
        *(gradients if layout.data > 1 else ()),
    ]
    moments = [
        Peak(moment=name, parts=(*always, *parts))
        for index, role in enumerate(work.trained)
        for name, parts in _training(work, role, index, layout)
    ]
    moments.append(Peak(moment="optimizer step", parts=(*always, *(() if layout.data > 1 else gradients))))
    moments += [
        Peak(moment=phase.name, parts=(*always, *_generating(work.role(phase.role), phase)))
        for phase in work.phases
        if phase.work == "generate"
    ]
    return max(moments, key=lambda peak: peak.total_bytes)


def of_processes(peak: Peak, count: int) -> Peak:
    """The peak of a machine on which so many processes do the same."""
    if count == 1:
        return peak
    parts = tuple(
        (role, replace(term, value=count * term.value, formula=f"{count} processes x ({term.formula})"))
        for role, term in peak.parts
    )
    return replace(peak, parts=parts)


def _training(work: Workload, role: Role, index: int, layout: Layout) -> list[tuple[str, tuple[tuple[str, Term], ...]]]:
    """Forward and backward pass of one role, beside the gradients that wait: of those before, or of all that add up."""
    phase = next(item for item in work.phases if item.role == role.name and item.work == "train")
    waiting = work.trained if layout.accumulation > 1 else work.trained[:index]
    waits = () if layout.data > 1 else tuple((other.name, _gradients(other)) for other in waiting)
    batch = batch_terms(role, phase, layout, summed=len(work.roles) == 1)
    compared = tuple(
        (other.name, term) for other in work.roles if _reads_beside(work, role, other) for term in batch.read
    )
    return [
        (f"training {role.name} (loss)", (*waits, *((role.name, term) for term in batch.forward))),
        (f"training {role.name} (reference)", (*waits, *((role.name, term) for term in batch.kept), *compared)),
        (f"training {role.name} (backward)", (*waits, *((role.name, term) for term in batch.backward))),
    ]


def _reads_beside(work: Workload, role: Role, other: Role) -> bool:
    """Return True if a frozen model reads the batch while the trained one's activations wait: the reference of DPO."""
    generates = any(phase.work == "generate" for phase in work.phases)
    return not generates and not other.trained and role.trained


def _state(role: Role, work: Workload) -> list[Term]:
    """Weights of every role; moments of what is trained."""
    weights = FP32 * _held(role, work)
    terms = [bytes_term("weights", "parameters", weights, f"{FP32:g} B x {weights / FP32:,.0f}", SOURCE)]
    if role.trained:
        trained = _trained(role)
        terms.append(bytes_term("optimizer", "optimizer", MOMENTS * trained, f"{MOMENTS:g} B x {trained:,.0f}", SOURCE))
    return terms


def _gradients(role: Role) -> Term:
    trained = _trained(role)
    return bytes_term("gradients", "gradients", FP32 * trained, f"{FP32:g} B x {trained:,.0f}", SOURCE)


def _body(role: Role) -> float:
    """Parameters that are in use: with a scalar head none of an output projection of its own."""
    a = role.architecture
    count = float(count_parameters(a).total)
    if not role.scalar_head:
        return count
    head = 0 if a.tied_embeddings else a.vocab_size * a.hidden_size
    return count - head + a.hidden_size + 1


def _held(role: Role, work: Workload) -> float:
    """Parameters in memory: those of an output projection stay with a model that is published or only scores.

    The value model of PPO is neither, and lets them go.
    """
    is_value = role.scalar_head and role.trained and len(work.roles) > 1
    base = _body(role) if is_value else float(count_parameters(role.architecture).total)
    return base + (_trained(role) if role.adapter else 0.0)


def _trained(role: Role) -> float:
    return float(adapter_parameters(role.architecture, role.adapter)) if role.adapter else _body(role)


def _generating(role: Role, phase: Phase) -> tuple[tuple[str, Term], ...]:
    """Keys and values of all sequences, and one layer's of them once more: the cache grows by copies."""
    a = role.architecture
    cache = 2 * kv_cache_bytes(a, phase.longest_tokens) * phase.batch
    logits = 3 * 8.0 * a.vocab_size * phase.batch
    return (
        (
            role.name,
            bytes_term(
                "keys and values", "kv_cache", cache * (1 + 1 / a.num_layers), f"{phase.batch} sequences", SOURCE
            ),
        ),
        (role.name, logit_term("logits", logits)),
    )
