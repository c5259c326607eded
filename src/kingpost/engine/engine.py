"""The engine: token losses of a batch with and without a change, by the way that was checked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kingpost.ablations import Change
from kingpost.engine.losses import (
    HeadCapture,
    SlicedLoss,
    cross_entropy,
    head_input,
    position_slices,
)
from kingpost.engine.replay import (
    OnBlock,
    Tape,
    cut_of,
    never_called,
    plain_forward,
    record,
    replay,
)
from kingpost.models import Model, hidden_in, with_hidden


@dataclass(frozen=True)
class Recording:
    """A batch and what its baseline forward pass left behind.

    Attributes:
        ids: Token ids, int64 [B, T].
        tape: What the blocks returned; None where the engine runs plain forward passes.
    """

    ids: torch.Tensor
    tape: Tape | None


class Engine:
    """Runs forward passes of one model and gives their next-token losses.

    `checked_engine` chooses how; both ways give the same numbers.

    Args:
        model: The model.
        replays: Replay from a recording; else plain forward passes with hooks, which is slower.
        slices: Losses in slices of the vocabulary; else in slices of positions, which is slower
            but lets the model make its own logits.
    """

    def __init__(self, model: Model, *, replays: bool = True, slices: bool = True) -> None:
        self.model, self.replays, self.slices = model, replays, slices
        self._sliced_loss = SlicedLoss(model.head.weight, model.head.bias) if slices else None  # type: ignore[arg-type]

    def record(self, ids: torch.Tensor, *, on_block: OnBlock | None = None) -> Recording:
        """Run the baseline over ids [B, T] and keep what later calls of `token_losses` need."""
        if not self.replays:
            if on_block is not None:
                record(self.model, ids, on_block=on_block)
            return Recording(ids, None)
        with head_input(self.model.head, HeadCapture()):
            _, tape = record(self.model, ids, on_block=on_block)
        return Recording(ids, tape)

    @torch.no_grad()
    def token_losses(self, recording: Recording, change: Change | None = None) -> torch.Tensor:
        """Losses of the next token: of the baseline, or with a change.

        Args:
            recording: A batch of this model.
            change: What an ablation does; None for the baseline, which takes the same way.

        Returns:
            float32 [B, T - 1], nats, on the CPU.

        Raises:
            UnsupportedModelError: The change never came into effect.
        """
        if recording.tape is None:
            return self._plain_losses(recording.ids, change).cpu()
        with change.edit() if change else nullcontext():
            return self._replayed_losses(recording, recording.tape, change).cpu()

    def _replayed_losses(
        self, recording: Recording, tape: Tape, change: Change | None
    ) -> torch.Tensor:
        capture, ids = HeadCapture(), recording.ids
        with head_input(self.model.head, capture):
            skipped = change.skipped if change else frozenset()
            replay(self.model, ids, tape, cut=cut_of(tape, change), skipped=skipped)
        if self._sliced_loss is not None:
            return self._sliced_loss(capture.taken(), ids)
        return self._position_losses(recording, tape, capture.taken())

    def _position_losses(
        self, recording: Recording, tape: Tape, hidden: torch.Tensor
    ) -> torch.Tensor:
        """Losses from hidden states [..., T, d]: the model makes the logits, slice by slice."""
        ids, calls = recording.ids, len(tape.blocks)
        losses = []
        for part in position_slices(ids.shape[0], ids.shape[1] - 1, self.model.vocabulary_size):
            narrowed = hidden[..., part, :]
            # Every block is taken from the tape, so this costs the head and what follows it.
            with head_input(self.model.head, _always(narrowed)):
                logits = replay(self.model, ids, tape, cut=calls).logits
            losses.append(cross_entropy(logits, ids[:, part.start + 1 : part.stop + 1]))
        return torch.cat(losses, dim=1)

    def _plain_losses(self, ids: torch.Tensor, change: Change | None) -> torch.Tensor:
        """Losses by one plain forward pass with hooks; in float32 a sequence at a time."""
        with hooked(self.model, change):
            logits = plain_forward(self.model, ids).logits
        rows = zip(logits.split(1), ids.split(1), strict=True)
        return torch.cat([cross_entropy(row[:, :-1], targets[:, 1:]) for row, targets in rows])


def _always(hidden: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda _: hidden


@contextmanager
def hooked(model: Model, change: Change | None) -> Iterator[None]:
    """Within the context plain forward passes run with the change; blocks are skipped by hooks.

    Raises:
        UnsupportedModelError: A block to be skipped was never called.
    """
    reached: set[int] = set()

    def skip_hook(block: int) -> Any:
        def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            reached.add(block)
            return with_hidden(output, hidden_in(args, kwargs))

        return after

    skipped = change.skipped if change else frozenset[int]()
    with ExitStack() as stack:
        if change is not None:
            stack.enter_context(change.edit())
        for block in skipped:
            handle = model.blocks[block].register_forward_hook(skip_hook(block), with_kwargs=True)
            stack.callback(handle.remove)
        yield
    if reached != skipped:
        raise never_called(skipped - reached)
