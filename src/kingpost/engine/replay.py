"""Record a forward pass once, then run only the part of it that an ablation can change.

The model's own `forward` runs every time: masks, rotary embeddings, the final norm and whatever
follows it are its own code. Only block calls before the change return what was recorded.
"""

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from kingpost.ablations import Change
from kingpost.engine.calls import (
    SideEffect,
    containers,
    copies,
    intercept,
    side_effects,
    write_again,
)
from kingpost.errors import UnsupportedModelError
from kingpost.models import Model, hidden_in, hidden_out, with_hidden

# block, input hidden state, output hidden state; for a looped model once per call of the block
OnBlock = Callable[[int, torch.Tensor, torch.Tensor], None]


@dataclass
class Tape:
    """What every block call of one forward pass returned, in the order of the calls.

    Looped models call a block several times, so a call is not a block.

    Attributes:
        blocks: The block of each call.
        outputs: What each call returned: a tensor, a tuple, a list or a transformers output.
        effects: What each call wrote into its mutable arguments (shared keys and values).
    """

    blocks: list[int] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    effects: list[list[SideEffect]] = field(default_factory=list)

    def first_call(self, block: int) -> int:
        """The first call of a block.

        Raises:
            UnsupportedModelError: The block was never called.
        """
        if block not in self.blocks:
            raise never_called({block})
        return self.blocks.index(block)

    @property
    def nbytes(self) -> int:
        """Bytes that the recorded hidden states take."""
        return sum(hidden_out(o).nbytes for o in self.outputs)


def plain_forward(model: Model, ids: torch.Tensor) -> Any:
    """The model's own forward pass over token ids [B, T], without a cache; gives its output."""
    return model.hf(input_ids=ids, use_cache=False)


def never_called(blocks: Set[int]) -> UnsupportedModelError:
    """The error for blocks that a forward pass never reaches, such as those that see images."""
    listed = ", ".join(f"L{block}" for block in sorted(blocks))
    return UnsupportedModelError(
        f"A forward pass over text never calls {listed}, so nothing can be said about it: "
        "the model is not one that Kingpost can scan."
    )


@torch.no_grad()
def record(model: Model, ids: torch.Tensor, *, on_block: OnBlock | None = None) -> tuple[Any, Tape]:
    """One plain forward pass over ids [B, T] that tapes what each block returns.

    Args:
        model: The model.
        ids: Token ids, int64 [B, T].
        on_block: Called with the input and output hidden states of each block call.

    Returns:
        The model's output and the tape.
    """
    tape = Tape()

    def tape_call(block: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        mutable = containers(args, kwargs)
        before = copies(mutable)
        output = forward(*args, **kwargs)
        tape.blocks.append(block)
        tape.outputs.append(output)
        tape.effects.append(side_effects(before, mutable))
        return output

    with watch_blocks(model, on_block), intercept(model.blocks, tape_call):
        return plain_forward(model, ids), tape


@contextmanager
def watch_blocks(model: Model, on_block: OnBlock | None) -> Iterator[None]:
    """Within the context `on_block` is called with the hidden states of each block call."""

    def watch(block: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if on_block is not None:
            with torch.no_grad():
                on_block(block, hidden_in(args, kwargs), hidden_out(output))
        return output

    with intercept(model.blocks, watch):
        yield


@torch.no_grad()
def replay(
    model: Model, ids: torch.Tensor, tape: Tape, *, cut: int, skipped: frozenset[int] = frozenset()
) -> Any:
    """The forward pass over ids [B, T] with the first `cut` block calls taken from the tape.

    Args:
        model: The model that made the tape.
        ids: The token ids that made the tape, int64 [B, T].
        tape: The recorded calls.
        cut: Number of calls that return what was recorded.
        skipped: Blocks that return their input hidden state; what they write for others stays.

    Returns:
        The model's output.

    Raises:
        UnsupportedModelError: A block to be skipped was not reached.
    """
    reached: set[int] = set()
    n_calls = 0

    def replay_call(block: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        nonlocal n_calls
        call, n_calls = n_calls, n_calls + 1
        # Up to the cut nothing has changed, so the recorded call is what this call would do.
        if call < cut or (call == cut and block in skipped):
            write_again(tape.effects[call], containers(args, kwargs))
            output = tape.outputs[call]
        else:
            output = forward(*args, **kwargs)
        if call >= cut and block in skipped:
            reached.add(block)
            return with_hidden(output, hidden_in(args, kwargs))
        return output

    with intercept(model.blocks, replay_call):
        output = plain_forward(model, ids)
    if reached != skipped:
        raise never_called(skipped - reached)
    return output


def cut_of(tape: Tape, change: Change | None) -> int:
    """Number of block calls that a change leaves as they were recorded; all of them for None.

    Raises:
        UnsupportedModelError: None of the blocks that it changes was called.
    """
    if change is None:
        return len(tape.blocks)
    if not change.touched:
        return 0
    called = change.touched.intersection(tape.blocks)
    if not called:
        raise never_called(change.touched)
    return min(tape.first_call(block) for block in called)
