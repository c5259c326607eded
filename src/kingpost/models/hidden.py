"""The hidden state in what a module of a stack is given and in what it returns."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kingpost.errors import UnsupportedModelError

_HIDDEN_NAMES = ("hidden_states", "hidden", "x", "inputs")


def hidden_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The input hidden state of a block: its first argument, or the one that is named so.

    Raises:
        UnsupportedModelError: There is no floating-point tensor among the arguments.
    """
    named = [kwargs.get(name) for name in _HIDDEN_NAMES]
    for value in [*args[:1], *named, *args, *kwargs.values()]:
        if torch.is_tensor(value) and value.is_floating_point():
            return value
    raise UnsupportedModelError("A block is called without a hidden state; it cannot be skipped.")


def hidden_out(output: Any) -> torch.Tensor:
    """The hidden state in what a block returned: the output itself or its element 0."""
    return output if torch.is_tensor(output) else output[0]


def with_hidden(output: Any, hidden: torch.Tensor) -> Any:
    """What a block returned, with its hidden state replaced.

    Raises:
        UnsupportedModelError: The block returned something in which element 0 cannot be replaced.
    """
    if torch.is_tensor(output):
        return hidden
    if isinstance(output, tuple) and not hasattr(output, "_fields"):
        return (hidden, *output[1:])
    if isinstance(output, list):
        return [hidden, *output[1:]]
    raise UnsupportedModelError(
        f"A module returns a {type(output).__name__}, whose hidden state is not known, "
        "so that it cannot be replaced."
    )
