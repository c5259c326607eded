"""kingpost inspect: what was found in a model."""

from typing import Annotated

import typer
from rich.table import Table

import kingpost
from kingpost.cli.console import out


def inspect(
    model: Annotated[str | None, typer.Argument(help="Hub id, folder or .gguf file.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that the checkpoint brings.")
    ] = False,
) -> None:
    """Print a model's blocks and components, and what is tied, shared or fused."""
    loaded = kingpost.load_model(model, trust_remote_code=trust_remote_code)
    print_model(loaded)


def print_model(model: "kingpost.Model") -> None:
    """Print what was found in a model."""
    from kingpost.models import block_kinds, shared_blocks

    in_blocks = sum({id(p): p.numel() for b in model.blocks for p in b.parameters()}.values())
    tied = "tied to the input embedding" if model.tied_head else "of its own"
    out.print(
        f"{model.name}: {type(model.hf).__name__}, {model.n_parameters:,} parameters, "
        f"{in_blocks:,} of them in {len(model.blocks)} blocks at {model.blocks_path}",
        markup=False,
    )
    out.print(f"vocabulary {model.vocabulary_size:,}; output embedding {tied}", markup=False)
    if shared := shared_blocks(model.blocks):
        out.print(f"blocks that are one and the same module: {_ranges(shared)}", markup=False)
    for note in model.notes:
        out.print(note, markup=False)
    by_block: dict[int, list[kingpost.models.Component]] = {}
    for component in model.parameters():
        by_block.setdefault(component.block, []).append(component)
    for kind in block_kinds(model.blocks):
        first = kind[0]
        name = type(model.blocks[first]).__name__
        shown = Table(title=f"{_ranges(kind)}: {name}", title_justify="left")
        for column in ("parameter", "shape", "parameters", "roles", "remarks"):
            shown.add_column(column, justify="right" if column == "parameters" else "left")
        for c in by_block.get(first, []):
            parameter = model.blocks[first].get_parameter(c.slices[0].parameter)
            shape = " × ".join(map(str, parameter.shape))
            roles = ", ".join(model.roles_of(c))
            shown.add_row(c.name, shape, f"{c.n_parameters:,}", roles, _remarks(model, c))
        out.print(shown)
        sublayers = [c for c in model.components() if c.block == first and c.kind == "sublayer"]
        listed = ", ".join(f"{c.name} ({c.n_parameters:,} parameters)" for c in sublayers)
        out.print(f"sub-layers: {listed or 'none'}", markup=False)


def _remarks(model: "kingpost.Model", component: "kingpost.models.Component") -> str:
    parameter = model.blocks[component.block].get_parameter(component.slices[0].parameter)
    others = model.blocks_that_hold([parameter]) - {component.block}
    fused = ["fused"] if len(model.roles_of(component)) > 1 else []
    return "; ".join(fused + ([f"shared with {_ranges(sorted(others))}"] if others else []))


def _ranges(blocks: list[int]) -> str:
    """Block numbers as L0–L3, L5."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    return ", ".join(f"L{r[0]}–L{r[-1]}" if len(r) > 1 else f"L{r[0]}" for r in runs)
