"""Sites that give the same number are measured once, and only those."""

from pathlib import Path

import pytest
import torch
import transformers

import kingpost
from architectures.configs import build
from kingpost.engine import Engine, checked_engine
from kingpost.scanning.request import targets
from kingpost.scanning.same import same_sites
from tests_support import byte_tokenizer, tiny_llama


def groups(hf: transformers.PreTrainedModel, where: list[str], ablation: str = "zero") -> list:
    """For block 1 the sets of components that are measured as one."""
    model = kingpost.load_model(hf, device="cpu")
    ids = torch.arange(64).reshape(2, 32) * 5 % 97
    engine, _ = checked_engine(model, ids)
    first = same_sites(engine, ids, targets(model, where, ablation, ["ablation"]), 0)
    found: dict[object, set[str]] = {}
    for site, other in first.items():
        if site.block == 1:
            found.setdefault(other, set()).add(site.component)
    return sorted(sorted(g) for g in found.values())


ROLES = ["attn", "mlp", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def test_without_biases_there_are_three_numbers() -> None:
    assert groups(tiny_llama(), ROLES) == [
        ["attn", "o_proj", "v_proj"],
        ["down_proj", "gate_proj", "mlp", "up_proj"],
        ["k_proj", "q_proj"],
    ]


def test_a_bias_behind_takes_them_apart() -> None:
    hf = tiny_llama(attention_bias=True, mlp_bias=True)
    for name, parameter in hf.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    # Zeroing v leaves the bias of o; zeroing gate or up leaves the bias of down.
    assert groups(hf, ROLES) == [
        ["attn", "o_proj"],
        ["down_proj", "mlp"],
        ["gate_proj", "up_proj"],
        ["k_proj", "q_proj"],
        ["v_proj"],
    ]


def test_a_gate_that_does_not_vanish_at_zero_is_another_site() -> None:
    hf = tiny_llama(hidden_act="sigmoid")
    assert ["gate_proj"] in groups(hf, ["gate_proj", "up_proj", "down_proj"])


def test_a_role_and_its_only_parameter_are_one_under_every_ablation() -> None:
    for ablation in ("zero", "identity", "quantize:4"):
        assert groups(tiny_llama(), ["q_proj", "self_attn.q_proj"], ablation) == [
            ["q_proj", "self_attn.q_proj"]
        ]
    # Noise is drawn for each site by its name.
    assert len(groups(tiny_llama(), ["q_proj", "self_attn.q_proj"], "noise:1")) == 2


def test_without_biases_a_norm_is_its_sublayer() -> None:
    assert groups(tiny_llama(), ["attn", "mlp", "norms"]) == [
        ["attn", "input_layernorm"],
        ["mlp", "post_attention_layernorm"],
    ]
    assert len(groups(tiny_llama(), ["parameters"])) == 3
    assert len(groups(tiny_llama(), ["norms"], "ones")) == 2


def test_other_ablations_of_different_matrices_are_different() -> None:
    assert len(groups(tiny_llama(), ["gate_proj", "up_proj"], "shrink:0.5")) == 2


def test_a_parameter_that_blocks_share_is_one_site() -> None:
    hf = build("zamba2")
    model = kingpost.load_model(hf, device="cpu")
    shared = [c for c in model.parameters() if len(model.blocks_that_hold(_held(model, c))) > 1]
    name = shared[0].name
    ids = torch.arange(64).reshape(2, 32)
    engine, _ = checked_engine(model, ids)
    first = same_sites(engine, ids, targets(model, [name], "shrink:0.5", ["ablation"]), 0)
    assert len(set(first.values())) < len(first)


def _held(model: kingpost.Model, component: object) -> list[torch.nn.Parameter]:
    block = model.blocks[component.block]
    return [block.get_parameter(s.parameter) for s in component.slices]


def test_a_scan_measures_them_once_and_marks_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kingpost.load_model(tiny_llama(), tokenizer=byte_tokenizer(), device="cpu")
    text = kingpost.load_text(model=model, n_sequences=4, length=24)
    runs = []
    losses = Engine.token_losses

    def counted(self, recording, change=None):
        if change is not None and recording.ids.shape[0] == 4:
            runs.append(change)
        return losses(self, recording, change)

    monkeypatch.setattr(Engine, "token_losses", counted)
    study = kingpost.scan(model, text, tmp_path, ROLES, batch=4)
    assert len(runs) == 3 * 4
    table = study.table().set_index(["block", "component"])
    assert table.loc[(1, "k_proj"), "note"].startswith("the same as q_proj, measured once")
    assert table.loc[(1, "down_proj"), "note"].startswith("the same as mlp, measured once")
    assert "same as" not in table.loc[(1, "mlp"), "note"]
    assert table.loc[(1, "down_proj"), "value"] == table.loc[(1, "mlp"), "value"]
    checked = kingpost.verify(study, 36, model=model)
    assert checked["difference"].max() < 1e-5
