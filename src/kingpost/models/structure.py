"""Where the blocks of a model are and what they consist of, found by structure and not by name.

The rules come from a survey of every causal architecture in transformers; `docs/architectures.md`
lists the ones that pass.
"""

from collections import Counter
from collections.abc import Sequence

from torch import nn

from kingpost.errors import KingpostError


def find_blocks(hf: nn.Module) -> tuple[str, nn.ModuleList]:
    """The stack of blocks: the longest outermost `ModuleList`; of equals, the heaviest.

    Outermost: not inside an element of another list, so that a list of experts is never taken.
    Stacks of parts that read no text (vision and audio towers) are left out.

    Returns:
        The path of the list inside the model and the list.

    Raises:
        KingpostError: There is no such list.
    """
    lists = {n: m for n, m in hf.named_modules() if isinstance(m, nn.ModuleList) and len(m) > 0}
    outermost = [
        (name, modules)
        for name, modules in lists.items()
        if not any(name.startswith(other + ".") for other in lists) and _reads_text(hf, name)
    ]
    if not outermost:
        raise KingpostError(
            f"{type(hf).__name__} holds no list of blocks, so there is nothing to take away: "
            "Kingpost needs a model whose layers stand in a torch.nn.ModuleList."
        )
    return max(outermost, key=lambda item: (len(item[1]), count_parameters(item[1])))


def _reads_text(hf: nn.Module, path: str) -> bool:
    """Whether the innermost transformers model around a path declares that it reads text."""
    module, modalities = hf, getattr(hf, "input_modalities", "text")
    for name in path.split("."):
        module = getattr(module, name)
        modalities = getattr(module, "input_modalities", modalities)
    return "text" in modalities


def count_parameters(module: nn.Module) -> int:
    """Number of parameters; a tied or shared one counts once."""
    return sum(p.numel() for p in module.parameters())


def block_kinds(blocks: Sequence[nn.Module]) -> list[list[int]]:
    """Blocks grouped by what they are made of: the same class and the same parameter shapes."""
    kinds: dict[object, list[int]] = {}
    for i, block in enumerate(blocks):
        shapes = tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
        kinds.setdefault((type(block), shapes), []).append(i)
    return list(kinds.values())


def shared_blocks(blocks: Sequence[nn.Module]) -> list[int]:
    """Positions of the stack that hold a module which also stands at another position."""
    uses = Counter(id(b) for b in blocks)
    return [i for i, b in enumerate(blocks) if uses[id(b)] > 1]


def holders(blocks: Sequence[nn.Module]) -> dict[int, frozenset[int]]:
    """For the id of every module and parameter inside the stack: the blocks that hold it."""
    found: dict[int, set[int]] = {}
    for i, block in enumerate(blocks):
        for part in (*block.modules(), *block.parameters()):
            found.setdefault(id(part), set()).add(i)
    return {key: frozenset(indices) for key, indices in found.items()}
