"""The family has the three parameter counts of the published figure."""

import pytest
import torch

from kingpost.errors import UsageError
from kingpost.reference import FAMILY, build


@pytest.mark.parametrize(
    ("size", "blocks", "parameters"),
    [("D8", 8, 30_440_416), ("D12", 12, 92_777_496), ("D16", 16, 284_838_280)],
)
def test_parameter_counts(size: str, blocks: int, parameters: int) -> None:
    with torch.device("meta"):
        model = build(size)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model.config.num_hidden_layers == blocks
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("size", FAMILY)
def test_every_fourth_block_and_the_last_has_full_attention(size: str) -> None:
    with torch.device("meta"):
        layers = build(size).model.layers
    full = [hasattr(layer, "self_attn") for layer in layers]
    assert full == [i % 4 == 3 or i == len(layers) - 1 for i in range(len(layers))]
    for layer, attends in zip(layers, full, strict=True):
        mixer = layer.self_attn if attends else layer.linear_attn
        assert hasattr(mixer, "a_proj") is hasattr(mixer, "b_proj") is (not attends)
        head = mixer.head_dim if attends else mixer.head_k_dim
        assert head == 64


def test_weights_depend_on_the_seed_alone() -> None:
    first = build("D2").state_dict()
    torch.rand(1)
    again, other = build("D2").state_dict(), build("D2", seed=1).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_an_unknown_size_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"There is no size 'D9': give D2, D8, D12, D16\."):
        build("D9")
