"""Recurrent mixers (Mamba, Mamba-2, gated delta nets): their parameters, their operations, and the state they keep."""

from charter.spec.architecture import Architecture, StateSpace


def state_space_parameters(architecture: Architecture, space: StateSpace) -> int:
    """Parameters of one mixer, its inner norms included; the norm in front of it belongs to the layer.

    Source: Mamba-2 (arXiv:2405.21060), section 7, and the classes of transformers: `BambaMixer`, `JambaMambaMixer`,
    `Qwen3NextGatedDeltaNet`.
    """
    matrices = state_space_matrices(architecture, space)
    projections = state_space_input_width(space) + architecture.hidden_size
    biases = space.conv_bias * space.conv_channels + space.projection_bias * projections
    convolution = space.conv_channels * space.conv_kernel
    return matrices + biases + convolution + _small_parameters(architecture, space)


def state_space_matrices(architecture: Architecture, space: StateSpace) -> int:
    """Parameters of the mixer's matrix products: in, out, and the time step's two of Mamba-1."""
    inner, hidden = space.inner_size, architecture.hidden_size
    outer = hidden * state_space_input_width(space) + inner * hidden
    if space.kind != "mamba1":
        return outer
    rank = _time_step_rank(architecture, space)
    return outer + inner * (rank + 2 * space.state_size) + rank * inner


def state_space_input_width(space: StateSpace) -> int:
    """Columns of the input projection: x and gate, with B, C and time step (q, k and two gates of a delta net)."""
    per_head = {"mamba1": 0, "mamba2": 1, "gated_delta_net": 2}[space.kind]
    return space.inner_size + space.conv_channels + per_head * space.num_heads


def _time_step_rank(architecture: Architecture, space: StateSpace) -> int:
    return space.time_step_rank or -(-architecture.hidden_size // 16)


def _small_parameters(architecture: Architecture, space: StateSpace) -> int:
    """A, D, the time step's bias, and inner norms."""
    if space.kind == "mamba2":
        return 3 * space.num_heads + space.inner_size
    if space.kind == "gated_delta_net":
        return 2 * space.num_heads + space.head_size
    rank = _time_step_rank(architecture, space)
    norms = space.inner_norms * (rank + 2 * space.state_size)
    return space.inner_size * (space.state_size + 2) + norms


def scan_flops_per_token(space: StateSpace, seq_len: float, *, decode: bool = False) -> float:
    """Operations of one mixer's convolution and recurrence for one token, forward.

    Mamba-2 in chunks of Q positions (state N, inner width D, G groups): `2 Q N G` for C B', `2 Q D` for its product
    with x, `2 N D` into the state and `2 N D` out of it (arXiv:2405.21060, section 6, block decomposition; kernels
    compute whole squares). A delta net (arXiv:2412.06464) takes per head `6 Q dk + 4 Q dv + 6 dk dv`: an
    approximation, the triangular solve left out. Mamba-1 `9 N D` (its scan is no matrix product). One token at a
    time (`decode`): `7 N D`, as Megatron counts it.

    >>> space = StateSpace(num_layers=1, inner_size=8192, state_size=128, num_heads=128, num_groups=8)
    >>> round(scan_flops_per_token(space, 8192) / 1e6, 2), round(scan_flops_per_token(space, 1, decode=True) / 1e6, 2)
    (8.99, 7.42)
    """
    inner, state = space.inner_size, space.state_size
    convolution = 2.0 * space.conv_channels * space.conv_kernel
    if decode:
        return convolution + 7.0 * inner * state
    if space.kind == "mamba1":
        return convolution + 9.0 * inner * state
    chunk = min(seq_len, space.chunk_size)
    if space.kind == "mamba2":
        return convolution + 2 * chunk * state * space.num_groups + 2 * chunk * inner + 4.0 * inner * state
    keys = space.num_heads * state
    return convolution + 6 * chunk * keys + 4 * chunk * inner + 6.0 * inner * state


def recurrent_state_bytes(
    architecture: Architecture, *, bytes_per_value: float = 4.0, conv_bytes_per_value: float = 2.0, tensor: int = 1
) -> float:
    """Bytes of the recurrent states of one sequence on one tensor-parallel rank, whatever its length.

    `layers * (inner * state * bytes + conv_channels * (kernel - 1) * conv bytes) / tensor`. The state is kept in fp32
    unless a serving engine is told otherwise. Source: arXiv:2405.21060, section 2; the caches of transformers.

    >>> from charter.catalog import models
    >>> round(recurrent_state_bytes(models.get("Nemotron-H-8B").architecture) / 2**20, 1)
    97.4
    """
    space = architecture.state_space
    if space is None:
        return 0.0
    state = space.inner_size * space.state_size * bytes_per_value
    convolution = space.conv_channels * (space.conv_kernel - 1) * conv_bytes_per_value
    return space.num_layers * (state + convolution) / tensor
