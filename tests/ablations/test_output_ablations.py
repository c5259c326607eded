"""zero, mean and resample of outputs in a scan, against plain hooks on the model."""

from pathlib import Path

import numpy as np
import pytest
import torch

import kingpost
from kingpost.errors import UnsupportedModelError, UsageError
from kingpost.scanning.replacements import derangement


def losses(model: kingpost.Model, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits = model.hf(ids).logits.double()
    return -logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1).mean(1)


def output_of(model: kingpost.Model, module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    kept = []
    handle = module.register_forward_hook(lambda _, __, output: kept.append(output))
    losses(model, ids)
    handle.remove()
    return kept[0][0] if isinstance(kept[0], tuple) else kept[0]


def replaced(
    model: kingpost.Model, module: torch.nn.Module, ids: torch.Tensor, new: torch.Tensor
) -> np.ndarray:
    def after(_: object, __: object, output: object) -> object:
        return (new, *output[1:]) if isinstance(output, tuple) else new

    baseline = losses(model, ids)
    handle = module.register_forward_hook(after)
    found = losses(model, ids) - baseline
    handle.remove()
    return found.numpy()


MODULES = {"attn": "self_attn", "mlp": "mlp", "q_proj": "self_attn.q_proj", "norms": None}


@pytest.mark.parametrize("ablation", ["zero", "mean", "resample"])
@pytest.mark.parametrize("name", ["attn", "mlp", "q_proj", "down_proj"])
def test_a_scan_gives_what_plain_hooks_give(
    tiny_model: kingpost.Model,
    tiny_text: kingpost.Text,
    tmp_path: Path,
    name: str,
    ablation: str,
) -> None:
    study = kingpost.scan(tiny_model, tiny_text, tmp_path, [name], ablation, batch=4)
    found = study.observations().pivot(index="block", columns="sequence", values="value")
    ids = torch.from_numpy(tiny_text.token_ids)
    donors = derangement(len(ids), tiny_text.seed)
    path = {"attn": "self_attn", "mlp": "mlp", "q_proj": "self_attn.q_proj"}
    for block in range(len(tiny_model.blocks)):
        module = tiny_model.blocks[block].get_submodule(path.get(name, f"mlp.{name}"))
        output = output_of(tiny_model, module, ids)
        new = {
            "zero": torch.zeros_like(output),
            "mean": output[:, :-1].double().mean((0, 1)).float().expand_as(output),
            "resample": output[donors],
        }[ablation]
        expected = replaced(tiny_model, module, ids, new)
        np.testing.assert_allclose(found.loc[block], expected, atol=2e-6)
    assert kingpost.verify(study, 4, model=tiny_model)["difference"].max() < 1e-5


@pytest.mark.parametrize("n", [2, 3, 7, 50])
def test_a_derangement_leaves_nothing_in_its_place(n: int) -> None:
    for seed in range(20):
        order = derangement(n, seed)
        assert sorted(order) == list(range(n))
        assert (order != np.arange(n)).all()
        assert np.array_equal(order, derangement(n, seed))


def test_an_ablation_that_draws_on_all_sequences_keeps_their_number(
    tiny_model: kingpost.Model, tmp_path: Path
) -> None:
    few = kingpost.load_text(model=tiny_model, n_sequences=4, length=24)
    many = kingpost.load_text(model=tiny_model, n_sequences=6, length=24)
    kingpost.scan(tiny_model, few, tmp_path, ["attn"], "mean")
    for ablation in ("mean", "auto"):
        with pytest.raises(UsageError, match="there were 4 and now are 6"):
            kingpost.scan(tiny_model, many, tmp_path, ["attn"], ablation)
    one = kingpost.load_text(model=tiny_model, n_sequences=1, length=24)
    with pytest.raises(UsageError, match="resample draws on other sequences: give at least two"):
        kingpost.scan(tiny_model, one, tmp_path / "one", ["attn"], "resample")


def test_a_module_that_is_never_called_is_an_error_and_not_a_zero(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    block = tiny_model.blocks[2]
    block.mlp.spare = torch.nn.Linear(4, 4)
    with pytest.raises(UnsupportedModelError, match=r"mlp.spare of L2 was never called"):
        kingpost.scan(tiny_model, tiny_text, tmp_path, ["mlp.spare"], "mean")
