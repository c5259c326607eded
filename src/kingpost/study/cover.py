"""Components of a block that show each of its weights once."""

from collections.abc import Iterable
from typing import Any


def cover(components: list[Any]) -> list[Any]:
    """Components that do not overlap and leave as little of the block out as can be.

    Args:
        components: Rows of `Study.components` of one block.
    """
    by_kind = {
        kind: [c for c in components if c.kind == kind]
        for kind in ("parameter", "role", "sublayer")
    }
    # Roles may be slices of one fused parameter and still not overlap; sub-layers may be nested.
    largest_first = sorted(by_kind["sublayer"], key=lambda c: -c.n_parameters)
    groups = [by_kind["parameter"], by_kind["role"], *([c] for c in largest_first)]
    coarse = [*groups[2:], groups[1], groups[0]]
    return max(
        (_disjoint(groups), _disjoint(coarse)),
        key=lambda chosen: sum(c.n_parameters for c in chosen),
    )


def _disjoint(groups: Iterable[list[Any]]) -> list[Any]:
    """Of each group the components of which no part is in an earlier group."""
    chosen: list[Any] = []
    covered: set[str] = set()
    for group in groups:
        free = [c for c in group if covered.isdisjoint(c.parameters)]
        chosen += free
        covered.update(*(c.parameters for c in free))
    return chosen
