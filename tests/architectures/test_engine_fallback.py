"""Models that the fast ways do not fit: the self-check must find out, and the losses stay right."""

from typing import Any, ClassVar

import hook_reference as reference
import pytest
import torch
from architecture_checks import TOKEN_TOLERANCE, token_ids
from configs import build
from torch import nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaForCausalLM

import kingpost
from kingpost.ablations import Setting, ablation_for, skip_block
from kingpost.engine import Engine, checked_engine
from kingpost.engine.replay import record, replay
from kingpost.errors import UnsupportedModelError

IDS = token_ids()


class Gossip(LlamaDecoderLayer):
    """Hears what the block before it said, by a way that is no argument."""

    said: ClassVar[dict[int, torch.Tensor]] = {}

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        block = self.self_attn.layer_idx
        output = super().forward(hidden_states, **kwargs)
        self.said[block] = output.mean(-1, keepdim=True)
        return output + self.said[block - 1] if self.listens(block) else output

    def listens(self, block: int) -> bool:
        return block > 0


class PairGossip(Gossip):
    """Only the second block of each pair listens, so nothing crosses the middle of the stack."""

    def listens(self, block: int) -> bool:
        return block % 2 == 1


class InPlace(LlamaDecoderLayer):
    """Changes its input hidden state in place, and so what is on the tape."""

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return super().forward(hidden_states.mul_(1.1), **kwargs)


class ScaledHead(nn.Linear):
    """An output embedding that does more than multiply."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) * 0.5


class Softcapped(LlamaForCausalLM):
    """Logits with a softcap after the output embedding."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = torch.tanh(output.logits)
        return output


class HeadNotCalled(LlamaForCausalLM):
    """Multiplies with the output embedding without calling it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.model(*args, **kwargs)
        output.logits = nn.functional.linear(output.last_hidden_state, self.lm_head.weight)
        return output


def llama_of(
    block: type[nn.Module] | None = None, model: type[nn.Module] | None = None
) -> LlamaForCausalLM:
    """A tiny llama of which the blocks or the model itself are of another class."""
    hf = build("llama")
    for layer in hf.model.layers:
        layer.__class__ = block or type(layer)
    hf.__class__ = model or type(hf)
    return hf


def assert_right_losses(engine: Engine) -> None:
    """Baseline and skips, in an order in which what one leaves behind would harm the next."""
    hf, recording = engine.model.hf, engine.record(IDS)
    expected = [reference.losses_of(reference.logits_of(hf, IDS), IDS)]
    for block in engine.model.blocks:
        logits = reference.logits_without(hf, block, IDS)
        expected.append(reference.losses_of(logits, IDS))
    changes = [skip_block(i) for i in range(len(expected) - 1)]
    for change, losses in zip([None, *changes], expected, strict=True):
        found = engine.token_losses(recording, change).double()
        torch.testing.assert_close(found, losses, rtol=0, atol=TOKEN_TOLERANCE)


@pytest.mark.parametrize("block", [Gossip, PairGossip, InPlace])
def test_blocks_that_a_replay_does_not_fit_run_in_plain_forward_passes(block: type) -> None:
    engine, notes = checked_engine(kingpost.load_model(llama_of(block), device="cpu"), IDS)
    assert not engine.replays
    assert [n for n in notes if n.startswith("Plain forward passes with hooks are used")]
    assert_right_losses(engine)


def test_a_replay_of_hidden_state_would_indeed_be_wrong() -> None:
    """The test above is about something: forced to replay, the numbers are wrong."""
    engine = Engine(kingpost.load_model(llama_of(Gossip), device="cpu"))
    with pytest.raises(AssertionError):
        assert_right_losses(engine)


@pytest.mark.parametrize("how", ["softcap", "scaled head"])
def test_what_follows_the_head_is_noticed(how: str) -> None:
    hf = llama_of(model=Softcapped if how == "softcap" else None)
    if how == "scaled head":
        hf.lm_head.__class__ = ScaledHead
    engine, notes = checked_engine(kingpost.load_model(hf, device="cpu"), IDS)
    assert engine.replays
    assert not engine.slices
    assert notes[0].startswith("Losses are computed in slices of positions")
    assert_right_losses(engine)


def test_a_head_that_is_never_called_means_plain_forward_passes() -> None:
    engine, notes = checked_engine(
        kingpost.load_model(llama_of(model=HeadNotCalled), device="cpu"), IDS
    )
    assert not engine.replays
    assert not engine.slices
    assert "never called" in " ".join(notes)
    assert_right_losses(engine)


@pytest.mark.parametrize("replays", [True, False])
def test_a_skip_that_never_happens_is_an_error(replays: bool) -> None:
    hf = llama_of()
    hf.config.num_hidden_layers = 3  # the forward pass stops before the last block
    model = kingpost.load_model(hf, device="cpu")
    engine = Engine(model, replays=replays)
    recording = engine.record(IDS)
    with pytest.raises(UnsupportedModelError, match="never calls L3"):
        engine.token_losses(recording, skip_block(3))
    _, tape = record(model, IDS)
    with pytest.raises(UnsupportedModelError, match="never calls L3"):
        replay(model, IDS, tape, cut=0, skipped=frozenset({3}))


def test_a_failed_forward_pass_leaves_nothing_behind() -> None:
    hf = llama_of()
    model = kingpost.load_model(hf, device="cpu")
    _, tape = record(model, IDS)
    with pytest.raises(IndexError):
        replay(model, IDS + 1000, tape, cut=0)
    assert reference.traces_on(hf) == []


@pytest.mark.parametrize(
    ("where", "ablation"), [("q_proj", "zero"), ("attn", "zero"), ("mlp", "resample")]
)
def test_components_are_changed_by_plain_forward_passes_as_by_replays(
    where: str, ablation: str
) -> None:
    model = kingpost.load_model(build("llama"), device="cpu")
    for target in model.select([where]):
        made = ablation_for(ablation, target)[1]
        other = [torch.randn(*IDS.shape, 32) for _ in target.outputs]
        change = made.change(model, target, Setting(0, other))
        found = []
        for replays in (True, False):
            engine = Engine(model, replays=replays, slices=False)
            found.append(engine.token_losses(engine.record(IDS), change))
        torch.testing.assert_close(found[0], found[1], atol=TOKEN_TOLERANCE, rtol=0)
        baseline = engine.token_losses(engine.record(IDS))
        assert float((found[1] - baseline).abs().max()) > 1e-3
