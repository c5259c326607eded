"""Measures against calculations by hand in float64."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import kingpost
from kingpost.errors import KingpostError
from kingpost.measures import HiddenStates, delta_loss


def cosines(u: torch.Tensor, v: torch.Tensor) -> np.ndarray:
    u, v = u.double().numpy(), v.double().numpy()
    norms = np.linalg.norm(u, axis=-1) * np.linalg.norm(v, axis=-1)
    return (u * v).sum(-1) / norms


def test_influence_and_angular_are_cosines_of_plain_hooks(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    study = kingpost.scan(tiny_model, tiny_text, tmp_path, measures=["influence", "angular"])
    found = study.observations().set_index(["measure", "block", "sequence"])["value"]
    seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for i, layer in enumerate(tiny_model.hf.model.layers):
        layer.register_forward_hook(
            lambda _, args, output, i=i: seen.update({i: (args[0], output)}), always_call=True
        )
    with torch.no_grad():
        tiny_model.hf(torch.from_numpy(tiny_text.token_ids))
    for block, (before, after) in seen.items():
        cos = cosines(before, after)
        for sequence in range(len(cos)):
            assert found["influence", block, sequence] == pytest.approx(
                (1 - cos[sequence]).mean(), abs=1e-6
            )
            assert found["angular", block, sequence] == pytest.approx(
                (np.arccos(cos[sequence]) / math.pi).mean(), abs=1e-6
            )


def test_known_angles() -> None:
    states = HiddenStates(1, n_sequences=1, length=4)
    before = torch.tensor([[[1.0, 0.0]] * 4])
    after = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [1.0, 1.0]]])
    states(0, before, after)
    assert states.values("angular")[0, 0] == pytest.approx((0 + 0.5 + 1 + 0.25) / 4, abs=1e-7)
    assert states.values("influence")[0, 0] == pytest.approx(
        (0 + 1 + 2 + 1 - 0.5**0.5) / 4, abs=1e-7
    )


def test_a_small_turn_is_not_lost_to_rounding() -> None:
    states = HiddenStates(1, n_sequences=1, length=1)
    angle = 1e-4  # 1 − cos = 5e-9 is below the resolution of float32 around 1
    states(0, torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[math.cos(angle), math.sin(angle)]]]))
    assert states.values("influence")[0, 0] == pytest.approx(angle**2 / 2, rel=1e-3)
    assert states.values("angular")[0, 0] == pytest.approx(angle / math.pi, rel=1e-3)


def test_streams_and_repeated_calls_are_averaged() -> None:
    before = torch.tensor([1.0, 0.0]).expand(4, 2, 3, 2)  # four streams of two sequences
    after = before.clone()
    after[0] = torch.tensor([0.0, 1.0])  # one of them turned by 90 degrees
    states = HiddenStates(1, n_sequences=2, length=3)
    states(0, before, after)
    states(0, before, before)
    assert states.values("influence")[0] == pytest.approx([1 / 8, 1 / 8])
    assert np.isnan(HiddenStates(1, n_sequences=2, length=3).values("influence")).all()


def test_hidden_states_that_are_not_one_a_token_are_refused() -> None:
    states = HiddenStates(1, n_sequences=2, length=3)
    with pytest.raises(KingpostError, match=r"shape \[2, 5\] and not one for each token"):
        states(0, torch.ones(2, 5, 4), torch.ones(2, 5, 4))


def test_delta_loss_is_in_float64() -> None:
    baseline = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    ablated = torch.tensor([[1.5, 2.0], [3.0, 3.0]])
    deltas = delta_loss(ablated, baseline)
    assert deltas.dtype == np.float64
    assert deltas.tolist() == [0.25, -0.5]
