"""Losses in slices against float64 arithmetic on full logits."""

import pytest
import torch

from kingpost.engine import losses
from kingpost.engine.losses import SlicedLoss, position_slices


def expected(
    hidden: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    logits = hidden.double() @ weight.double().T + (0 if bias is None else bias.double())
    chosen = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
    return -chosen.squeeze(-1)


@pytest.mark.parametrize("vocabulary", [7, 4096, 4097, 9000])
@pytest.mark.parametrize("with_bias", [False, True])
def test_float32(vocabulary: int, with_bias: bool) -> None:
    g = torch.Generator().manual_seed(vocabulary)
    hidden = torch.randn(5, 300, 16, generator=g)  # 5 · 299 rows: more than one chunk of rows
    weight = torch.randn(vocabulary, 16, generator=g)
    bias = torch.randn(vocabulary, generator=g) if with_bias else None
    ids = torch.randint(vocabulary, (5, 300), generator=g)
    found = SlicedLoss(weight, bias)(hidden, ids)
    assert found.shape == (5, 299)
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.double(), expected(hidden, ids, weight, bias), atol=1e-5, rtol=0
    )


def test_bfloat16_is_as_good_as_its_logits() -> None:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 50, 64, generator=g).bfloat16()
    weight = (torch.randn(5000, 64, generator=g) / 4).bfloat16()
    ids = torch.randint(5000, (2, 50), generator=g)
    found = SlicedLoss(weight, None)(hidden, ids).double()
    truth = expected(hidden, ids, weight, None)
    # The target's logit is a float32 product; the rounding of the others averages out.
    assert (found - truth).abs().max() < 0.02


def test_extreme_logits_do_not_overflow() -> None:
    weight = torch.tensor([[1e4], [-1e4], [9.999e3]])
    ids = torch.tensor([[0, 0, 2, 1]])
    found = SlicedLoss(weight, None)(torch.ones(1, 4, 1), ids)
    torch.testing.assert_close(
        found, torch.tensor([[0.313262, 1.313262, 2e4 + 0.313262]]), atol=1e-2, rtol=0
    )


def test_the_buffers_do_not_grow_with_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for vocabulary in (8192, 65536):
        sliced = SlicedLoss(torch.zeros(vocabulary, 4), None)
        sliced(torch.zeros(1, 10, 4), torch.zeros(1, 10, dtype=torch.long))
        assert sliced._buffers is not None
        sizes.append(sum(b.nbytes for b in sliced._buffers))
    assert sizes[0] == sizes[1]


def test_position_slices_cover_every_position_once_and_bound_the_logits() -> None:
    for n_sequences, n_positions, vocabulary in (
        (2, 255, 262_144),
        (16, 255, 49_152),
        (64, 3, 10**9),
    ):
        slices = list(position_slices(n_sequences, n_positions, vocabulary))
        assert [p for s in slices for p in range(s.start, s.stop)] == list(range(n_positions))
        widest = max(s.stop - s.start for s in slices)
        assert widest == 1 or widest * n_sequences * vocabulary <= losses._LOGITS
