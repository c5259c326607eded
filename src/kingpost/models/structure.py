"""Where the blocks of a model are and what they consist of, found by structure and not by name.

The rules come from a survey of every causal architecture in transformers; `docs/architectures.md`
lists the ones that pass.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from kingpost.errors import KingpostError

# One line for each kind of fused parameter: what its name looks like and what it holds.
_FUSED: tuple[tuple[str, str], ...] = (
    (r"(^|\.)(in_proj_qkvz)$", "q, k, v and output gate"),
    (r"(^|\.)(in_proj_ba)$", "β and α"),
    (r"(^|\.)(c_attn|query_key_value|qkv_proj|W?qkv(_proj)?|in_proj_qkv|qkv)$", "q, k and v"),
    (r"(^|\.)kv_a_proj_with_mqa$", "latent and rotary key"),
    (r"(^|\.)(kv_b_proj|kv_proj)$", "k and v"),
    (r"(^|\.)(gate_up_proj|gate_and_up_proj|Wi|input_linear)$", "gate and up"),
    (r"(mamba|mixer|ssm).*\.in_proj$", "the inputs of a state-space layer"),
)


@dataclass(frozen=True)
class Component:
    """One parameter of one block.

    Attributes:
        block: Index of the block, from 0.
        name: The parameter's name inside the block, without `.weight`.
        shape: Its shape.
        n_parameters: Its number of elements.
        fused: What it holds, if one parameter serves several roles; else empty.
        shared_with: Other blocks that hold this very parameter.
    """

    block: int
    name: str
    shape: tuple[int, ...]
    n_parameters: int
    fused: str = ""
    shared_with: tuple[int, ...] = ()


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


def list_components(blocks: Sequence[nn.Module]) -> list[Component]:
    """Every parameter of every block, read from the modules: blocks of one model may differ."""
    holders: dict[int, list[int]] = {}
    for block, _, parameter in _named_parameters(blocks):
        holders.setdefault(id(parameter), []).append(block)
    return [
        Component(
            block=block,
            name=name.removesuffix(".weight"),
            shape=tuple(parameter.shape),
            n_parameters=parameter.numel(),
            fused=_fused(name.removesuffix(".weight")),
            shared_with=tuple(b for b in holders[id(parameter)] if b != block),
        )
        for block, name, parameter in _named_parameters(blocks)
    ]


def block_kinds(blocks: Sequence[nn.Module]) -> list[list[int]]:
    """Blocks grouped by what they are made of: the same class and the same component shapes."""
    components: dict[int, list[tuple[object, ...]]] = {i: [] for i in range(len(blocks))}
    for c in list_components(blocks):
        components[c.block].append((c.name, c.shape))
    kinds: dict[object, list[int]] = {}
    for i, block in enumerate(blocks):
        kinds.setdefault((type(block), tuple(components[i])), []).append(i)
    return list(kinds.values())


def shared_blocks(blocks: Sequence[nn.Module]) -> list[int]:
    """Positions of the stack that hold a module which also stands at another position."""
    uses = Counter(id(b) for b in blocks)
    return [i for i, b in enumerate(blocks) if uses[id(b)] > 1]


def _named_parameters(blocks: Sequence[nn.Module]) -> Iterator[tuple[int, str, nn.Parameter]]:
    for i, block in enumerate(blocks):
        for name, parameter in block.named_parameters():
            yield i, name, parameter


def _fused(name: str) -> str:
    return next((what for pattern, what in _FUSED if re.search(pattern, name)), "")
