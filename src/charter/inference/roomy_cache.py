"""A key/value cache with room for tokens to come, so that a new token does not copy all that came before.

transformers' own cache concatenates at every token, which for a small model on a CPU costs as much as the model itself.
Legend: L rows, H heads, T columns, D head size.
"""

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

ROOM_TOKENS = 64
"""Columns that are added at once: the copy of a row's keys is then 1/64 of what one at every token takes."""


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values; `keys` and `values` are the part in use of larger tensors."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append columns."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
            self._roomy_keys, self._roomy_values = self.keys, self.values
        used, more = self.keys.shape[2], key_states.shape[2]
        if used + more > self._roomy_keys.shape[2]:
            self._roomy_keys = _with_room(self.keys, more + ROOM_TOKENS)
            self._roomy_values = _with_room(self.values, more + ROOM_TOKENS)
        self.keys, self.values = self._roomy_keys[:, :, : used + more], self._roomy_values[:, :, : used + more]
        self.keys[:, :, used:], self.values[:, :, used:] = key_states, value_states
        return self.keys, self.values

    def keep(self, row_L: Tensor, first_column: int) -> None:
        """Go on with some rows, without the first columns."""
        self.keys, self.values = self.keys[row_L, :, first_column:], self.values[row_L, :, first_column:]
        self._roomy_keys, self._roomy_values = self.keys, self.values


def _with_room(part_LHTD: Tensor, columns: int) -> Tensor:
    rows, heads, used, size = part_LHTD.shape
    whole = part_LHTD.new_empty((rows, heads, used + columns, size))
    whole[:, :, :used] = part_LHTD
    return whole


def new_cache(config: Any) -> DynamicCache:
    """The model's own kind of cache, with room in it where every layer keeps everything.

    Layers with a sliding window or a recurrent state have caches of their own, which stay as they are.
    """
    cache = DynamicCache(config=config)
    if cache.layers and all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [RoomyLayer() for _ in cache.layers]
    return cache


def keep_rows(cache: DynamicCache, row_L: Tensor, first_column: int) -> int:
    """Go on with some rows of a cache; how many columns it has lost at its left, 0 where it cannot lose any."""
    layers = [layer for layer in cache.layers if isinstance(layer, RoomyLayer)]
    if len(layers) < len(cache.layers):
        cache.batch_select_indices(row_L)
        return 0
    for layer in layers:
        layer.keep(row_L, first_column)
    return first_column
