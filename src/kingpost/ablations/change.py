"""What an ablation does to a forward pass, as the engine needs to know it."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """An ablation, bound to a component of a model.

    Attributes:
        touched: The blocks whose calls may differ from the recorded ones before any other; empty if
            something before the stack differs already.
        skipped: Blocks that return their input hidden state.
        edit: Makes a context within which weights or outputs are changed.
    """

    touched: frozenset[int]
    skipped: frozenset[int] = frozenset()
    edit: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
