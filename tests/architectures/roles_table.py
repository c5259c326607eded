"""Write docs/roles.md: which roles the blocks of every type have, and from which parameters.

`python -m tests.architectures.roles_table` goes over all types, and checks on the way that zeroing
the outputs of the sub-layers is skipping the block, but in the types listed here.
"""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from kingpost.models.component import Component, Slice
from kingpost.models.roles import role_components
from kingpost.models.structure import block_kinds, find_blocks

from . import hook_reference as reference
from .configs import build, causal_types

PAGE = Path(__file__).parents[2] / "docs" / "roles.md"
SUBLAYERS = ("attn", "ssm", "short_conv", "mlp")
IDS = torch.randint(3, 120, (2, 24), generator=torch.Generator().manual_seed(1))
TOLERANCE = 1e-5  # in the logits: a block that adds zeros rounds as one that adds nothing, almost

# Why a block without its sub-layers is not a block skipped: what happens besides adding them.
NOT_THE_SKIP = {
    "a norm stands on the residual stream": (
        *("bart", "bert", "bert-generation", "big_bird", "blenderbot-small", "camembert"),
        *("data2vec-text", "electra", "ernie", "git", "marian", "minimax", "mvp", "openai-gpt"),
        *("plbart", "prophetnet", "rembert", "roberta", "roc_bert", "roformer", "trocr"),
        *("xlm-roberta", "xlnet", "xmod"),
    ),
    "the first block has a norm in front of it": ("rwkv",),
    "the residual stream is scaled or mixed": ("beam", "doge", "dory", "zaya"),
    "the block adds an input of its own, and scales the sum": ("gemma4", "gemma4_text"),
    "a block of n-grams is added": ("qwen4_exp", "qwen4_exp_text"),
    "several streams are mixed": (
        *("deepseek_v4", "gemma3n_text", "inkling2_loop_text", "inkling2_text"),
    ),
    "the streams are reversible": ("reformer",),
    "the attention of the last block returns its bias apart": ("gpt_neox_japanese",),
    "a block for images is never called": ("mllama",),
}


def parts(hf: Any, index: int) -> list[Component]:
    """The components of one block."""
    return role_components(index, find_blocks(hf)[1][index], hf.config)


def logits_with_zeros(hf: Any, block: nn.Module, components: Sequence[Component]) -> torch.Tensor:
    """The logits when the modules at the components' outputs return zeros.

    Raises:
        LookupError: One of the modules was not called.
    """
    modules = [block.get_submodule(o.module) for c in components for o in c.outputs]
    fired = set()

    def zero(module: nn.Module, _: Any, output: Any) -> Any:
        fired.add(module)
        if torch.is_tensor(output):
            return torch.zeros_like(output)
        return type(output)([torch.zeros_like(output[0]), *output[1:]])

    handles = [module.register_forward_hook(zero) for module in modules]
    try:
        logits = reference.logits_of(hf, IDS)
    finally:
        for handle in handles:
            handle.remove()
    if len(fired) < len(modules):
        raise LookupError("a module was not called")
    return logits


def skip_misfit(hf: Any) -> str:
    """How zeroing the sub-layers of a block differs from skipping it; empty if nowhere."""
    blocks = find_blocks(hf)[1]
    plain = reference.logits_of(hf, IDS)
    for index in [kind[0] for kind in block_kinds(blocks)]:
        sublayers = [c for c in parts(hf, index) if c.name in SUBLAYERS]
        try:
            found = logits_with_zeros(hf, blocks[index], sublayers)
            expected = reference.logits_without(hf, blocks[index], IDS)
        except (LookupError, TypeError) as error:
            return f"block {index}: {error}"
        if float((found - expected).abs().max()) > TOLERANCE:
            return f"block {index} differs by {float((found - expected).abs().max()):.1e}"
        if float((found - plain).abs().max()) < 1e-3:
            return f"without its sub-layers block {index} does the same"
    return ""


def rows_of(hf: Any) -> list[tuple[str, str, str]]:
    """Sub-layer, modules, and roles with their parameters, for every kind of block."""
    rows = []
    blocks = find_blocks(hf)[1]
    for index in [kind[0] for kind in block_kinds(blocks)]:
        components = parts(hf, index)
        sublayers = [c for c in components if c.name in SUBLAYERS]
        for sublayer in sublayers:
            inside = {s.parameter for s in sublayer.slices}
            roles = [_role(c, inside, _home(sublayer)) for c in components if c.kind == "role"]
            rows.append((sublayer.name, _home(sublayer), ", ".join(filter(None, roles))))
    return rows


def _home(sublayer: Component) -> str:
    """What the names of all parameters of a sub-layer begin with."""
    paths = [s.parameter.split(".")[:-1] for s in sublayer.slices]
    common = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


def _role(component: Component, inside: set[str], home: str) -> str:
    names = dict.fromkeys(_short(s, home) for s in component.slices if s.parameter in inside)
    if not names:
        return ""
    if list(names) == [component.name]:
        return component.name
    return f"{component.name} = {' + '.join(names)}"


def _short(part: Slice, home: str) -> str:
    name = part.parameter.removeprefix(f"{home}." if home else "")
    name = name.removesuffix(".weight").removesuffix(".bias")
    return name if part.index is None else f"{name}[]"


def page(found: dict[str, list[tuple[str, str, str]]], not_run: list[str]) -> str:
    """The text of docs/roles.md."""
    types_of: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for model_type, rows in found.items():
        for row in dict.fromkeys(rows):
            types_of[row].append(model_type)
    lines = [
        "# Roles",
        "",
        f"Which parameters of a block have which role, in the {len(found)} causal types of "
        f"transformers {transformers.__version__} of which a tiny model can be built. Written by "
        "`python -m tests.architectures.roles_table`; do not edit. `q_proj` alone: the parameter "
        "has the name of its role. `q_proj = c_attn[]`: a slice of a fused parameter. Parameters "
        "that are not named here go by their own names.",
    ]
    for sublayer in SUBLAYERS:
        rows = [(row, types) for row, types in types_of.items() if row[0] == sublayer]
        rows.sort(key=lambda item: -len(item[1]))
        lines += ["", f"## {sublayer}", "", "| in | roles | types |", "| --- | --- | --- |"]
        lines += [f"| `{r[1] or '(block)'}` | {r[2]} | {', '.join(types)} |" for r, types in rows]
    lines += [
        "",
        "## A block without its sub-layers",
        "",
        "is the block skipped, to the last digits of the logits, in all types but these:",
        "",
        *(f"- {reason}: {', '.join(types)}" for reason, types in NOT_THE_SKIP.items()),
        "",
        f"Not built or not run here: {', '.join(not_run)}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Check all types and write the page."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    known = {t for types in NOT_THE_SKIP.values() for t in types}
    found, not_run, wrong = {}, [], []
    for model_type in causal_types():
        try:
            hf = build(model_type)
            reference.logits_of(hf, IDS)
        except Exception as error:
            print(f"{model_type}: {type(error).__name__}: {error}".splitlines()[0])
            not_run.append(model_type)
            continue
        found[model_type] = rows_of(hf)
        misfit = skip_misfit(hf)
        if bool(misfit) != (model_type in known):
            wrong.append(f"{model_type}: {misfit or 'is the skip after all'}")
    if wrong:
        raise SystemExit("\n".join(wrong))
    PAGE.write_text(page(found, not_run), encoding="utf-8")
    print(f"written: {PAGE.name}, {len(found)} types")


if __name__ == "__main__":
    main()
