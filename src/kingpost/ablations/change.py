"""What an ablation does to a forward pass, as the engine needs to know it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """An ablation, bound to a model.

    Attributes:
        first_block: The first block whose output may differ from the recorded one.
        skipped: Blocks that return their input hidden state.
    """

    first_block: int
    skipped: frozenset[int] = frozenset()
