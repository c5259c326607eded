"""What goes into a block and comes out of it, and how its calls are intercepted.

A block's `forward` is replaced on the instance, not the block by another module: models read
attributes of their blocks (the kind of layer, say), and those must stay.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from torch import nn

# What a block writes into one mutable argument for later blocks: new entries, or appended items.
SideEffect = dict[Any, Any] | list[Any]
Handler = Callable[[int, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@contextlib.contextmanager
def intercept(blocks: Sequence[nn.Module], handler: Handler) -> Iterator[None]:
    """Within the context every call of a block is `handler(block, forward, args, kwargs)`.

    A module that stands at several places of the stack counts as the first of them.
    """
    restore: list[tuple[nn.Module, Any]] = []
    try:
        for i, block in enumerate(blocks):
            if any(block is other for other in blocks[:i]):
                continue
            restore.append((block, block.__dict__.get("forward")))
            block.forward = _bind(handler, i, block.forward)
        yield
    finally:
        for block, own in restore:
            if own is None:
                del block.__dict__["forward"]
            else:
                block.forward = own


def _bind(handler: Handler, block: int, forward: Callable[..., Any]) -> Callable[..., Any]:
    def intercepted(*args: Any, **kwargs: Any) -> Any:
        return handler(block, forward, args, kwargs)

    return intercepted


def containers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The mutable arguments of a block, into which it may write for later blocks."""
    return [v for v in [*args, *kwargs.values()] if isinstance(v, MutableMapping | list)]


def copies(mutable: Sequence[Any]) -> list[SideEffect]:
    """Shallow copies of mutable arguments, to be compared after the call."""
    return [dict(c) if isinstance(c, MutableMapping) else list(c) for c in mutable]


def side_effects(before: Sequence[SideEffect], after: Sequence[Any]) -> list[SideEffect]:
    """What was written into mutable arguments: the entries that are new or another object."""
    return [_written(b, a) for b, a in zip(before, after, strict=True)]


def _written(before: SideEffect, after: Any) -> SideEffect:
    if isinstance(before, dict):
        return {k: v for k, v in after.items() if k not in before or before[k] is not v}
    grown = len(after) > len(before) and all(x is y for x, y in zip(before, after, strict=False))
    return after[len(before) :] if grown else []


def write_again(effects: Sequence[SideEffect], mutable: Sequence[Any]) -> None:
    """Repeat what a recorded call wrote into its mutable arguments."""
    for effect, container in zip(effects, mutable, strict=True):
        if isinstance(effect, dict):
            container.update(effect)
        else:
            container.extend(effect)
