"""Sites that must give the same number, so that it is measured once.

Two kinds. Components that are the very same weights: a role and its only parameter, a parameter
that several blocks share. And, for `zero`, components with one and the same consequence: in a usual
block q and k (all scores are equal); v, o, attn and the norm before them; gate, up, down, mlp and
the norm before them. The second kind is not believed by name: on some tokens the losses must be
equal to the last bit, and not those of the whole model.
"""

import functools
from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch

from kingpost.ablations import Setting
from kingpost.engine import Engine
from kingpost.models import Model
from kingpost.scanning.request import Target
from kingpost.study import Site

_SEQUENCES, _TOKENS = 2, 32
# Zeroing any role of a set may have the same consequence; zeroing a norm that of the last two sets.
_CONSEQUENCES = (
    {"q_proj", "k_proj"},
    {"v_proj", "o_proj", "attn"},
    {"gate_proj", "up_proj", "down_proj", "mlp", "experts"},
)


def same_sites(
    engine: Engine, ids: torch.Tensor, exact: Sequence[Target], seed: int
) -> dict[Site, Site]:
    """For each site the first site that gives the same number; itself, if there is none before.

    Args:
        engine: The engine of the scan.
        ids: Token ids of the scan, int64 [N, T].
        exact: The sites of the measure `ablation`.
        seed: Seed of the study.
    """
    model = engine.model
    first = _same_weights(model, exact)
    groups: dict[tuple[int, int], list[Target]] = defaultdict(list)
    for target in exact:
        if first[target.site] == target.site:
            for consequence in _consequences(model, target):
                groups[target.component.block, consequence].append(target)
    # Norms alone are no candidates for each other.
    wanted = [g for g in groups.values() if len(g) > 1 and not all(_is_norm(t) for t in g)]
    if wanted:
        found = _same_losses(engine, ids[:_SEQUENCES, :_TOKENS], wanted, seed)
        first = {site: found.get(other, other) for site, other in first.items()}
    return first


def _same_weights(model: Model, exact: Sequence[Target]) -> dict[Site, Site]:
    seen: dict[Hashable, Site] = {}
    return {t.site: seen.setdefault(_identity(model, t), t.site) for t in exact}


def _identity(model: Model, target: Target) -> Hashable:
    """Equal for targets that do the same to the same weights."""
    component, name = target.component, target.site.ablation
    if component.kind == "block" or name.startswith("noise"):  # noise depends on the site's name
        return target.site
    block = model.blocks[component.block]
    slices = frozenset(
        (id(block.get_parameter(s.parameter)), None if s.index is None else tuple(s.index.tolist()))
        for s in component.slices
    )
    return name, component.kind == "sublayer", slices


def _consequences(model: Model, target: Target) -> list[int]:
    """Which consequences, by their place in the list, zeroing a target may have."""
    component = target.component
    if target.site.ablation != "zero":
        return []
    if _is_norm(target):
        return [1, 2]
    roles = {component.name}
    if component.kind == "parameter":
        # Biases are left out: in bfloat16 two small effects may round to the same.
        parameter = model.blocks[component.block].get_parameter(component.slices[0].parameter)
        roles = set(model.roles_of(component)) if parameter.ndim > 1 else set()
    return [i for i, names in enumerate(_CONSEQUENCES) if roles and roles <= names]


def _is_norm(target: Target) -> bool:
    return target.component.is_norm_weight


def _same_losses(
    engine: Engine, ids: torch.Tensor, groups: Sequence[Sequence[Target]], seed: int
) -> dict[Site, Site]:
    recording = engine.record(ids.to(engine.model.device))
    baseline = engine.token_losses(recording)

    @functools.cache
    def losses(target: Target) -> torch.Tensor:
        assert target.ablation is not None
        change = target.ablation.change(engine.model, target.component, Setting(seed))
        return engine.token_losses(recording, change)

    first: dict[Site, Site] = {}
    for group in groups:
        seen: list[Target] = []
        for target in group:
            same = [t.site for t in seen if torch.equal(losses(t), losses(target))]
            if same and target.site not in first:
                first[target.site] = same[0]
            if not same and not torch.equal(losses(target), baseline):
                seen.append(target)
    return first
