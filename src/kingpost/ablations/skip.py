"""skip: a block returns its input hidden state."""

from kingpost.ablations.change import Change


def skip(block: int) -> Change:
    """Take a block away: element 0 of its output is its input hidden state.

    What the block writes for other blocks (shared keys and values, router state) stays.
    """
    return Change(first_block=block, skipped=frozenset({block}))
