"""verify: some sites of a study once more, by a plain hooked forward pass.

Shares no code with the engine on purpose: a mistake there must not be repeated here.
"""

import os
from typing import Any

import numpy as np
import pandas as pd
import torch

from kingpost.errors import KingpostError
from kingpost.models import Model, load_model
from kingpost.study import Study, open_study


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
    measured = study.observations().query("measure == 'ablation' and ablation == 'skip'")
    if measured.empty:
        raise KingpostError(f"{study.folder} holds no exact ΔLoss, so there is nothing to verify.")
    model = model or _load(study)
    if model.weights_hash != study.provenance["weights_sha256"]:
        raise KingpostError(
            f"{model.name} has other weights than the model that {study.folder} was measured on."
        )
    blocks = np.sort(measured["block"].unique())
    drawn = np.sort(np.random.default_rng(seed).permutation(blocks)[:sites])
    observed = measured.pivot_table(index="block", columns="sequence", values="value", dropna=False)
    plain = _plain_deltas(model, study, [int(b) for b in drawn], set(observed.columns))
    recomputed = pd.DataFrame(plain, index=drawn)
    apart = (recomputed - observed.loc[drawn, recomputed.columns]).abs()
    return pd.DataFrame(
        {
            "block": drawn,
            "component": "block",
            "ablation": "skip",
            "value": observed.loc[drawn, recomputed.columns].mean(axis=1).to_numpy(),
            "plain": recomputed.mean(axis=1).to_numpy(),
            "difference": apart.max(axis=1).to_numpy(),
        }
    )


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
    model: Model, study: Study, blocks: list[int], wanted: set[int]
) -> dict[int, list[float]]:
    """ΔLoss by sequence: for each sequence a list over `blocks`, nats per token."""
    ids = {row.sequence: row.token_ids for row in study.sequences().itertuples()}
    deltas: dict[int, list[float]] = {}
    for batch in study.batches():  # in the batches of the scan: bfloat16 depends on their shape
        sequences = [s for s in batch if s in wanted]
        if not sequences:
            continue
        tokens = torch.from_numpy(np.stack([ids[s] for s in sequences]).astype(np.int64))
        tokens = tokens.to(model.device)
        baseline = _losses(model, tokens, None)
        skipped = [_losses(model, tokens, block) - baseline for block in blocks]
        deltas |= {s: [float(d[i]) for d in skipped] for i, s in enumerate(sequences)}
    return deltas


@torch.no_grad()
def _losses(model: Model, tokens: torch.Tensor, block: int | None) -> np.ndarray[Any, Any]:
    """Mean loss of each row of tokens [B, T] by a plain forward pass, without one block."""
    fired = []

    def pass_through(_: Any, args: Any, kwargs: Any, output: Any) -> Any:
        fired.append(True)
        hidden = args[0] if args else kwargs["hidden_states"]
        if isinstance(output, torch.Tensor):
            return hidden
        return type(output)([hidden, *output[1:]])

    handle = None
    if block is not None:
        handle = model.blocks[block].register_forward_hook(pass_through, with_kwargs=True)
    try:
        logits = model.hf(input_ids=tokens, use_cache=False).logits
    finally:
        if handle is not None:
            handle.remove()
    if block is not None and not fired:
        raise KingpostError(f"The hook on block {block} never fired, so nothing can be verified.")
    means = []
    for row, targets in zip(logits, tokens, strict=True):  # row by row: float32 logits are large
        loss = torch.nn.functional.cross_entropy(row[:-1].float(), targets[1:], reduction="none")
        means.append(float(loss.double().mean()))
    return np.array(means)
