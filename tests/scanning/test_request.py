"""What --where, --measure and --ablation choose."""

import pytest

import kingpost
from kingpost.errors import UsageError
from kingpost.scanning import targets

PARAMETERS = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "input_layernorm",
    "post_attention_layernorm",
]


def names(model: kingpost.Model, *where: str) -> list[str]:
    found = model.select(where)
    for block in range(1, 4):
        same = [c.name for c in found if c.block == block]
        assert same == [c.name for c in found if c.block == 0]
    return [c.name for c in found if c.block == 0]


def test_groups(tiny_model: kingpost.Model) -> None:
    assert names(tiny_model, "blocks") == ["block"]
    assert names(tiny_model, "parameters") == PARAMETERS
    assert names(tiny_model, "norms") == ["input_layernorm", "post_attention_layernorm"]
    roles = {p.rpartition(".")[2] for p in PARAMETERS}
    assert set(names(tiny_model, "components")) == roles | {"attn", "mlp"}


def test_roles_patterns_and_names_once_each(tiny_model: kingpost.Model) -> None:
    assert names(tiny_model, "q_proj") == ["q_proj"]
    assert names(tiny_model, "mlp") == ["mlp"]
    assert names(tiny_model, "mlp.*") == PARAMETERS[4:7]
    assert names(tiny_model, "*.q_proj", "self_attn.q_proj.weight") == ["self_attn.q_proj"]
    assert names(tiny_model, "blocks", "mlp.up_proj", "mlp.*")[:2] == ["block", "mlp.up_proj"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("q_prj", r"Nothing in the blocks is called 'q_prj'; near it are q_proj"),
        ("self_attn.q_pro", r"near it are self_attn.q_proj"),
        ("zzz", r"there are blocks, components, parameters, norms, attn, mlp, q_proj"),
    ],
)
def test_a_name_that_matches_nothing_lists_the_nearest(
    tiny_model: kingpost.Model, name: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tiny_model.select([name])


def test_auto_takes_away_blocks_by_skip_and_parts_by_zero(tiny_model: kingpost.Model) -> None:
    found = targets(tiny_model, ["blocks", "attn"], "auto", ["ablation"])
    assert {(t.site.component, t.site.ablation) for t in found} == {
        ("block", "skip"),
        ("attn", "zero"),
    }


def test_of_a_group_what_makes_no_sense_is_left_out(tiny_model: kingpost.Model) -> None:
    found = targets(tiny_model, ["parameters"], "identity", ["ablation"])
    assert {t.site.component for t in found} == {"self_attn.q_proj", "self_attn.o_proj"}
    found = targets(tiny_model, ["blocks", "mlp"], "auto", ["influence", "taylor"])
    assert {(t.site.measure, t.site.component) for t in found} == {
        ("influence", "block"),
        ("taylor", "block"),
        ("taylor", "mlp"),
    }
