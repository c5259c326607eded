"""What every block of a model consists of, and the choice of components by name.

Listed from the modules of each block, as blocks differ inside one model in a quarter of all
architectures.
"""

import difflib
import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from kingpost.errors import UsageError
from kingpost.models.component import Component, Output, Slice, count_elements, short_name
from kingpost.models.roles import role_components


def whole_blocks(blocks: Sequence[nn.Module]) -> list[Component]:
    """One component for each block: all of it."""
    return [
        _component(i, block, "block", "block", tuple(Slice(n) for n, _ in block.named_parameters()))
        for i, block in enumerate(blocks)
    ]


def list_parameters(blocks: Sequence[nn.Module], config: Any) -> list[Component]:
    """Every parameter of every block, by its own name."""
    listed = []
    for i, block in enumerate(blocks):
        # The roles know how a matrix lies in memory.
        axes = {s.parameter: s.axis for r in _roles(i, block, config) for s in r.slices}
        for name, _ in block.named_parameters():
            slices = (Slice(name, axes.get(name, 0)),)
            listed.append(_component(i, block, short_name(name), "parameter", slices))
    return listed


def list_components(blocks: Sequence[nn.Module], config: Any) -> list[Component]:
    """Sub-layers, projections by role, and by its own name every parameter that has no role."""
    parameters = list_parameters(blocks, config)
    listed = []
    for i, block in enumerate(blocks):
        roles = role_components(i, block, config)
        listed += roles
        listed += [p for p in parameters if p.block == i and not _is_covered(block, p, roles)]
    return listed


def _is_covered(block: nn.Module, parameter: Component, roles: Sequence[Component]) -> bool:
    """Whether every output feature of a parameter has a role."""
    (whole,) = parameter.slices
    width = block.get_parameter(whole.parameter).shape[whole.axis]
    served = [s for r in roles if r.kind == "role" for s in r.slices]
    return width <= sum(
        width if s.index is None else len(s.index) for s in served if s.parameter == whole.parameter
    )


def select(blocks: Sequence[nn.Module], config: Any, where: Sequence[str]) -> list[Component]:
    """The components that names ask for, each once, by block and in the order asked for.

    Args:
        blocks: The stack.
        config: The model's configuration.
        where: `blocks`, `components`, `parameters`, `norms`, a role such as `q_proj` or `mlp`, or a
            glob pattern on the names of parameters inside a block, such as `mlp.*`.

    Raises:
        UsageError: A name matches nothing; the message lists the nearest ones.
    """
    groups: dict[str, Callable[[], list[Component]]] = {
        "blocks": lambda: whole_blocks(blocks),
        "components": lambda: list_components(blocks, config),
        "parameters": lambda: list_parameters(blocks, config),
        "norms": lambda: [p for p in list_parameters(blocks, config) if p.is_norm],
    }
    chosen: dict[tuple[int, str], Component] = {}
    for name in where:
        found = groups[name]() if name in groups else _matching(blocks, config, name)
        if not found:
            raise UsageError(_nothing(blocks, config, name, list(groups)))
        for component in found:
            chosen.setdefault((component.block, component.name), component)
    return sorted(chosen.values(), key=lambda c: c.block)


def _matching(blocks: Sequence[nn.Module], config: Any, name: str) -> list[Component]:
    roles = [c for c in list_components(blocks, config) if c.kind != "parameter" and c.name == name]
    pattern = short_name(name)
    return roles or [
        p for p in list_parameters(blocks, config) if fnmatch.fnmatchcase(p.name, pattern)
    ]


def _nothing(blocks: Sequence[nn.Module], config: Any, name: str, groups: list[str]) -> str:
    listed = list_components(blocks, config) + list_parameters(blocks, config)
    names = list(dict.fromkeys([*groups, *(c.name for c in listed)]))
    near = difflib.get_close_matches(name, names, n=6, cutoff=0.4)
    roles = list(dict.fromkeys(c.name for c in listed if c.kind != "parameter"))
    return (
        f"Nothing in the blocks is called {name!r}; "
        f"{'near it are' if near else 'there are'} {', '.join(near or [*groups, *roles])}: "
        "kingpost inspect lists all names."
    )


def _component(
    index: int, block: nn.Module, name: str, kind: Any, slices: tuple[Slice, ...]
) -> Component:
    outputs = _outputs(block, slices[0].parameter) if kind == "parameter" else ()
    return Component(index, name, kind, slices, outputs, count_elements(block, slices))


def _owner(block: nn.Module, parameter: str) -> tuple[str, nn.Module, str]:
    path, _, attribute = parameter.rpartition(".")
    return path, block.get_submodule(path), attribute


def _roles(index: int, block: nn.Module, config: Any) -> list[Component]:
    return [c for c in role_components(index, block, config) if c.kind == "role"]


def _outputs(block: nn.Module, parameter: str) -> tuple[Output, ...]:
    """What a weight's own module returns, where the module has no other purpose."""
    path, owner, attribute = _owner(block, parameter)
    alone = not list(owner.children()) and path != ""
    return (Output(path),) if attribute == "weight" and alone else ()
