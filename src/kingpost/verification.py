"""verify: some sites of a study once more, by a plain forward pass.

Shares no code with the engine on purpose, so that a mistake in recording, replay or the sliced loss
is not repeated here: a whole forward pass runs, with full logits. What is done to a component is
what the ablation does in a scan; a skip is made by a hook of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from kingpost.ablations import Setting, ablation_for
from kingpost.errors import KingpostError
from kingpost.models import Model, load_model
from kingpost.scanning import Replacements, Target
from kingpost.study import Site, Study, open_study

_SITE = ["block", "component", "ablation"]


def verify(
    study: Study | str | os.PathLike[str],
    sites: int = 5,
    *,
    model: Model | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Recompute some sites of a study with forward hooks and full logits.

    Args:
        study: A study or its run folder.
        sites: Number of sites, drawn by `seed`; all if there are fewer.
        model: The model, already loaded; else the one that the study names is loaded.
        seed: Seed of the draw.

    Returns:
        One row for each site: block, component, ablation, `value` of the study and `plain` of the
        recomputation (mean ΔLoss, nats per token), and `difference`, the largest absolute
        difference over the sequences.

    Raises:
        KingpostError: The study has no exact ΔLoss to recompute, or the model is not the one that
            it was measured on.
    """
    study = study if isinstance(study, Study) else open_study(study)
    measured = study.observations().query("measure == 'ablation'")
    if measured.empty:
        raise KingpostError(f"{study.folder} holds no exact ΔLoss, so there is nothing to verify.")
    model = model or _load(study)
    if model.weights_hash != study.provenance["weights_sha256"]:
        raise KingpostError(
            f"{model.name} has other weights than the model that {study.folder} was measured on."
        )
    keys = measured[_SITE].drop_duplicates().sort_values(_SITE).reset_index(drop=True)
    drawn = keys.loc[np.sort(np.random.default_rng(seed).permutation(len(keys))[:sites])]
    observed = measured.pivot_table(index=_SITE, columns="sequence", values="value", dropna=False)
    rows = []
    recomputed = _plain_deltas(model, study, drawn, set(observed.columns))
    for key, plain in recomputed.items():
        pair = pd.DataFrame({"study": observed.loc[key], "plain": plain}).dropna()
        rows.append(
            {
                **dict(zip(_SITE, key, strict=True)),
                "value": pair["study"].mean(),
                "plain": pair["plain"].mean(),
                "difference": (pair["plain"] - pair["study"]).abs().max(),
            }
        )
    return pd.DataFrame(rows)


def _load(study: Study) -> Model:
    provenance = study.provenance
    if not provenance["model_source"]:
        raise KingpostError(
            f"{study.folder} was measured on a model in memory; pass that to kingpost.verify."
        )
    return load_model(
        provenance["model_source"], dtype=provenance["dtype"], device=provenance["device"]
    )


def _plain_deltas(
    model: Model, study: Study, drawn: pd.DataFrame, wanted: set[int]
) -> dict[tuple[Any, ...], dict[int, float]]:
    """ΔLoss by site and sequence, nats per token."""
    tokens = torch.from_numpy(np.stack(list(study.sequences()["token_ids"])).astype(np.int64))
    chosen = {key: _target(model, *key) for key in drawn.itertuples(index=False, name=None)}
    replacements = Replacements(model, tokens, study.provenance["seed"])
    replacements.take_means(list(chosen.values()), study.batches())
    deltas: dict[tuple[Any, ...], dict[int, float]] = {key: {} for key in chosen}
    for batch in study.batches():  # in the batches of the scan: bfloat16 depends on their shape
        if not wanted.intersection(batch):
            continue
        ids = tokens[batch].to(model.device)
        baseline = _losses(model, ids)
        for key, target in chosen.items():
            others = replacements.of(target, batch, list(chosen.values()))
            with _ablated(model, target, Setting(study.provenance["seed"], others)):
                deltas[key] |= dict(zip(batch, _losses(model, ids) - baseline, strict=True))
    return {k: {s: d for s, d in found.items() if s in wanted} for k, found in deltas.items()}


def _target(model: Model, block: int, component: str, ablation: str) -> Target:
    (found, *_) = (c for c in model.everything() if (c.block, c.name) == (block, component))
    site = Site(block, component, "ablation", ablation)
    return Target(site, found, ablation_for(ablation, found)[1])


@contextmanager
def _ablated(model: Model, target: Target, setting: Setting) -> Iterator[None]:
    if target.site.ablation != "skip":
        assert target.ablation is not None
        with target.ablation.change(model, target.component, setting).edit():
            yield
        return
    fired = []

    def pass_through(_: Any, args: Any, kwargs: Any, output: Any) -> Any:
        fired.append(True)
        hidden = args[0] if args else kwargs["hidden_states"]
        if isinstance(output, torch.Tensor):
            return hidden
        return type(output)([hidden, *output[1:]])

    block = target.site.block
    handle = model.blocks[block].register_forward_hook(pass_through, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
    if not fired:
        raise KingpostError(f"The hook on block {block} never fired, so nothing can be verified.")


@torch.no_grad()
def _losses(model: Model, tokens: torch.Tensor) -> npt.NDArray[np.float64]:
    """Mean loss of each row of tokens [B, T] by a plain forward pass."""
    logits = model.hf(input_ids=tokens, use_cache=False).logits
    means = []
    for row, targets in zip(logits, tokens, strict=True):  # row by row: float32 logits are large
        loss = torch.nn.functional.cross_entropy(row[:-1].float(), targets[1:], reduction="none")
        means.append(float(loss.double().mean()))
    return np.array(means)
