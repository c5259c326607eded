"""Next-token losses in nats, without ever holding the logits of all positions.

Two ways. In slices of the vocabulary, where the model's logits are nothing but its output
embedding times the hidden state: fast, with memory for one slice. In slices of positions, for
every other model (softcaps, scales): the model makes the logits of a few positions at a time.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from kingpost.errors import UnsupportedModelError

# A row is a predicted position. These sizes are the fastest of those tried on CPUs.
_ROWS = 1024
_VOCABULARY_SLICE = 4096
# Logits held at once when the model makes them itself.
_LOGITS = 2**24


class SlicedLoss:
    """Losses from hidden states in slices of the vocabulary, with buffers that are used again.

    Log-sum-exp is accumulated in float32 over the slices (the online form of Milakov and
    Gimelshein, arXiv 1805.02867); the logit of the target is a float32 dot product.

    Args:
        weight: Output embedding, [V, d].
        bias: Its bias, [V], or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    @torch.no_grad()
    def __call__(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Losses of the next token.

        Args:
            hidden: What the output embedding is given, [B, T, d].
            ids: Token ids, int64 [B, T].

        Returns:
            float32 [B, T - 1], nats.
        """
        rows = hidden[:, :-1].reshape(-1, hidden.shape[-1])
        targets = ids[:, 1:].reshape(-1)
        losses = [
            self._losses(rows[start : start + _ROWS], targets[start : start + _ROWS])
            for start in range(0, len(rows), _ROWS)
        ]
        return torch.cat(losses).view(ids.shape[0], ids.shape[1] - 1)

    def _losses(self, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        target = (rows.float() * self._weight[targets].float()).sum(1)
        if self._bias is not None:
            target += self._bias[targets].float()
        maximum = torch.full((len(rows), 1), -torch.inf, device=rows.device)
        total = torch.zeros((len(rows), 1), device=rows.device)
        for start in range(0, len(self._weight), _VOCABULARY_SLICE):
            logits = self._logits(rows, start)
            higher = torch.maximum(maximum, logits.amax(1, keepdim=True))
            # exp in place: a fresh buffer of this size costs more than the arithmetic
            total = total * (maximum - higher).exp() + logits.sub_(higher).exp_().sum(
                1, keepdim=True
            )
            maximum = higher
        return (total.log() + maximum).squeeze(1) - target

    def _logits(self, rows: torch.Tensor, start: int) -> torch.Tensor:
        """Logits of one slice of the vocabulary, float32 [rows, slice], in a buffer."""
        weight = self._weight[start : start + _VOCABULARY_SLICE]
        n, v = len(rows), len(weight)
        product, wide = self._room(rows)
        product = product[: n * v].view(n, v)
        torch.mm(rows, weight.t(), out=product)
        logits = (
            product if product.dtype == torch.float32 else wide[: n * v].view(n, v).copy_(product)
        )
        if self._bias is not None:
            logits += self._bias[start : start + v].float()
        return logits

    def _room(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._buffers is None:
            size = _ROWS * min(_VOCABULARY_SLICE, len(self._weight))
            wide = torch.empty(0 if rows.dtype == torch.float32 else size, device=rows.device)
            self._buffers = torch.empty(size, dtype=rows.dtype, device=rows.device), wide
        return self._buffers


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Losses from logits [B, T, V] and targets int64 [B, T]: float32 [B, T], nats."""
    flat = logits.float().reshape(-1, logits.shape[-1])
    losses = nn.functional.cross_entropy(flat, targets.reshape(-1), reduction="none")
    return losses.view(targets.shape)


@contextlib.contextmanager
def head_input(head: nn.Module, replace: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within the context the output embedding is given `replace(hidden)` instead of `hidden`."""

    def before_head(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (replace(args[0]), *args[1:])

    handle = head.register_forward_pre_hook(before_head)
    try:
        yield
    finally:
        handle.remove()


class HeadCapture:
    """Keeps what the output embedding is given and lets it compute one position only."""

    def __init__(self) -> None:
        self.hidden: torch.Tensor | None = None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Keep hidden states [..., T, d] and give back those of the first position."""
        self.hidden = hidden
        return hidden.narrow(-2, 0, 1)

    def taken(self) -> torch.Tensor:
        """The hidden states [..., T, d] that the output embedding was given.

        Raises:
            UnsupportedModelError: The output embedding was never called.
        """
        if self.hidden is None:
            raise UnsupportedModelError("The forward pass never calls the output embedding.")
        return self.hidden


def position_slices(n_sequences: int, n_positions: int, vocabulary: int) -> Iterator[slice]:
    """Slices of positions whose logits, over all sequences of a batch, are few enough to hold."""
    step = max(1, _LOGITS // max(1, n_sequences * vocabulary))
    for start in range(0, n_positions, step):
        yield slice(start, min(start + step, n_positions))
