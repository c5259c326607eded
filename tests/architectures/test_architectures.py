"""The engine against plain forward passes with hooks, on one model of every kind of architecture.

All types that transformers registers go through the same checks: `python -m tests.architectures`.
"""

from typing import Any

import hook_reference as reference
import pytest
import torch
from architecture_checks import Findings, check, check_model, token_ids
from configs import build
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import kingpost
from kingpost.engine.replay import record, replay

pytestmark = pytest.mark.usefixtures("one_thread")

# What each is here for is in the second column.
KINDS = {
    "bert": "an encoder as a decoder",
    "bloom": "ALiBi, fused q, k and v",
    "cohere2": "parallel attention and MLP, a logit scale",
    "deepseek_v3": "latent attention, dense and expert blocks",
    "dory": "blocks that run twice, a head of its own",
    "falcon": "multi-query attention",
    "gemma2": "a softcap",
    "gemma3_text": "two kinds of attention mask",
    "gemma3n_text": "four streams, shared keys and values",
    "gemma4_text": "shared keys and values",
    "git": "a vision tower that is longer than the stack",
    "gpt2": "transposed weights",
    "gpt_neox": "parallel residual",
    "gpt_oss": "attention sinks, experts",
    "granite": "a logit divisor",
    "hrm_text": "two stacks that run in turn",
    "inkling2_loop_text": "blocks that run twice, a softcap",
    "jamba": "state-space, attention and expert blocks",
    "lfm2": "short convolutions",
    "llama": "the common case",
    "mamba2": "state-space blocks",
    "mixtral": "experts",
    "mpt": "ALiBi, a config scale that is not used",
    "olmo_hybrid": "gated delta rule",
    "opt": "learned positions",
    "phi3": "fused gate and up",
    "prophetnet": "an n-gram axis at the head",
    "qwen3": "q_norm and k_norm",
    "qwen3_moe": "experts after a dense block",
    "qwen3_next": "gated delta rule with fused projections",
    "recurrent_gemma": "a linear recurrence, a softcap",
    "rwkv": "weights that the first forward pass rescales",
    "whisper": "the causal decoder of an encoder-decoder",
    "zamba2": "blocks that share parameters",
}
# Something follows the output embedding, or is part of it.
POSITIONS = {
    *("cohere2", "dory", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "granite"),
    *("inkling2_loop_text", "prophetnet", "recurrent_gemma"),
}
LOOPED = {"dory", "hrm_text", "inkling2_loop_text"}


class Noisy(LlamaDecoderLayer):
    """Adds something else in every forward pass."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().forward(*args, **kwargs) + torch.rand(1)


@pytest.fixture(scope="module", params=sorted(KINDS))
def checked(request: pytest.FixtureRequest) -> tuple[str, Findings]:
    return request.param, check(request.param)


def test_a_replay_from_every_cut_gives_the_same_bits(checked: tuple[str, Findings]) -> None:
    assert checked[1].replay_misfit == ""


def test_a_skip_of_every_block_gives_the_bits_of_a_hook(checked: tuple[str, Findings]) -> None:
    assert checked[1].skip_misfit == ""


def test_every_ablation_of_every_component_gives_the_bits_of_a_plain_forward_and_is_undone(
    checked: tuple[str, Findings],
) -> None:
    findings = checked[1]
    assert findings.edit_misfit == ""
    # What is left are weights that text does not reach, and experts that no token was sent to.
    assert findings.n_seen > findings.n_edits * 0.6 > 0


def test_losses_are_those_of_the_full_logits(checked: tuple[str, Findings]) -> None:
    assert checked[1].loss_misfit == ""


def test_the_model_is_left_as_it_was(checked: tuple[str, Findings]) -> None:
    assert checked[1].traces == ""


def test_the_fast_ways_are_taken_where_they_fit(checked: tuple[str, Findings]) -> None:
    model_type, findings = checked
    assert findings.replays
    assert findings.slices == findings.head_is_last == (model_type not in POSITIONS)
    assert len(findings.notes) == (0 if findings.slices else 1)


def test_blocks_are_the_stack_that_reads_text(checked: tuple[str, Findings]) -> None:
    model_type, findings = checked
    assert not {"vision", "image_encoder"} & set(findings.path.split("."))
    assert (findings.n_calls > findings.n_blocks) == (model_type in LOOPED)


def test_a_list_inside_a_block_is_not_taken_for_the_stack() -> None:
    hf = build("llama")
    for layer in hf.model.layers:
        layer.experts = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(8)])
    assert kingpost.load_model(hf, device="cpu").blocks_path == "model.layers"


@pytest.mark.parametrize("cut", range(5))
def test_a_replay_runs_only_the_blocks_from_the_cut_on(cut: int) -> None:
    hf, ids, ran = build("llama"), token_ids(), []
    _, tape = record(kingpost.load_model(hf, device="cpu"), ids)
    for i, layer in enumerate(hf.model.layers):
        layer.mlp.register_forward_hook(lambda *_, i=i: ran.append(i))
    replay(kingpost.load_model(hf, device="cpu"), ids, tape, cut=cut)
    assert ran == list(range(cut, 4))


def test_a_build_depends_on_nothing_before_it() -> None:
    torch.manual_seed(5)
    first = reference.tensors_of(build("llama"))
    drawn = torch.rand(1)
    build("gpt2")
    torch.manual_seed(5)
    assert reference.same_tensors(reference.tensors_of(build("llama")), first)
    assert torch.equal(torch.rand(1), drawn), "a build drew from the global random state"


def test_the_checks_notice_a_block_that_is_no_function_of_its_input() -> None:
    hf = build("llama")
    hf.model.layers[2].__class__ = Noisy
    findings = check_model(hf)
    assert not findings.passes
    assert all([findings.replay_misfit, findings.skip_misfit, findings.loss_misfit])
    assert findings.edit_misfit


def test_the_checks_notice_a_skip_that_changes_nothing() -> None:
    hf = build("llama")
    with torch.no_grad():
        hf.model.layers[1].self_attn.o_proj.weight.zero_()
        hf.model.layers[1].mlp.down_proj.weight.zero_()
    assert check_model(hf).skip_misfit == "skip of block 1 changes nothing"
