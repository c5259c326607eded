"""The checks that every architecture goes through: the engine against plain forwards with hooks."""

from collections.abc import Callable
from dataclasses import dataclass

import configs
import hook_reference as reference
import torch
import transformers

import kingpost
from kingpost.ablations import Ablation, Change, Setting, ablation_for, skip_block
from kingpost.engine import Engine, checked_engine
from kingpost.engine.replay import Tape, cut_of, record, replay
from kingpost.errors import UnsupportedModelError
from kingpost.models import Component, Model, block_kinds

SEQUENCES, TOKENS = 2, 24
# Mean of a sequence and single token, nats: float32 log-sum-exp against float64.
MEAN_TOLERANCE, TOKEN_TOLERANCE = 1e-6, 1e-5
# A change of the logits below this would let a skip that does nothing pass.
VISIBLE = 1e-3
# Every ablation of parts of a block; after each, all parameters must be what they were.
EDITS = (
    *("zero", "mean", "resample", "identity", "noise:1", "quantize:4", "shrink:0.5"),
    *("pin:0", "pin:1", "ones"),
)
# Of these, what is compared with a plain forward pass on every component; shrinking on parameters.
COMPARED = ("zero", "mean", "resample", "pin:0", "pin:1")


@dataclass(frozen=True)
class Findings:
    """What the checks found about one architecture; a misfit is empty where all agrees.

    Attributes:
        path: Where the blocks are.
        n_blocks: Number of blocks.
        n_calls: Number of block calls in one forward pass.
        replays: Whether `checked_engine` gave an engine that replays.
        slices: Whether that engine computes losses in slices of the vocabulary.
        head_is_last: Whether nothing follows the output embedding.
        notes: What `checked_engine` said.
        replay_misfit: How a replay at some cut differs from the plain forward pass.
        skip_misfit: How a replay without some block differs from the hooks, or is vacuous.
        edit_misfit: How a replay with an edited component differs from a plain forward pass with
            the same edit.
        n_edits: Number of edits that were compared.
        n_seen: How many of them change the logits.
        loss_misfit: How the engine's losses differ.
        traces: What is left on the model afterwards, or changed.
        remarks: What is particular about the architecture.
    """

    path: str
    n_blocks: int
    n_calls: int
    replays: bool
    slices: bool
    head_is_last: bool
    notes: tuple[str, ...]
    replay_misfit: str
    skip_misfit: str
    edit_misfit: str
    n_edits: int
    n_seen: int
    loss_misfit: str
    traces: str
    remarks: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """Whether the numbers are right, by the fastest way that fits, and the model is intact."""
        exact = not (self.replay_misfit or self.skip_misfit or self.edit_misfit)
        right = not (self.loss_misfit or self.traces)
        fastest = self.slices == (self.replays and self.head_is_last)
        return right and fastest and (exact or not self.replays)


def check(model_type: str) -> Findings:
    """Build a tiny model of a type and compare the engine with the reference on it.

    Raises:
        Exception: Of any kind: the model cannot be built, or does not run on token ids alone.
    """
    return check_model(configs.build(model_type))


def check_model(hf: transformers.PreTrainedModel) -> Findings:
    """Compare the engine with the reference on a model of at least 120 tokens."""
    model = kingpost.load_model(hf, device="cpu")
    ids = token_ids()
    drawn = reference.tensors_of(hf)
    reference.logits_of(hf, ids)
    before = reference.tensors_of(hf)
    head_is_last = reference.head_is_last(hf, ids)
    engine, notes = checked_engine(model, ids)
    _, tape = record(model, ids)
    remarks = _remarks(model, tape)
    if not reference.same_tensors(before, drawn):
        remarks.append("changes its own weights in its first forward pass")
    edits = Edits(model, ids, tape)
    return Findings(
        path=model.blocks_path,
        n_blocks=len(model.blocks),
        n_calls=len(tape.blocks),
        replays=engine.replays,
        slices=engine.slices,
        head_is_last=head_is_last,
        notes=tuple(notes),
        replay_misfit=_sentence(lambda: _replay_misfit(model, ids, tape)),
        skip_misfit=_sentence(lambda: _skip_misfit(model, ids, tape)),
        edit_misfit=_sentence(edits.misfit),
        n_edits=edits.n_compared,
        n_seen=edits.n_seen,
        loss_misfit=_sentence(lambda: _loss_misfit(engine, ids)),
        traces=_traces(hf, before),
        remarks=tuple(remarks),
    )


def token_ids() -> torch.Tensor:
    """Token ids that every tiny vocabulary has, none of them special."""
    return torch.randint(3, 120, (SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(1))


def _sentence(misfit: Callable[[], str]) -> str:
    """A misfit; an exception is one too."""
    try:
        return misfit()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _replay_misfit(model: Model, ids: torch.Tensor, tape: Tape) -> str:
    expected = reference.logits_of(model.hf, ids)
    for cut in range(len(tape.blocks) + 1):
        found = replay(model, ids, tape, cut=cut).logits
        if not torch.equal(found, expected):
            return f"cut {cut} differs by {_difference(found, expected)}"
    return ""


def _skip_misfit(model: Model, ids: torch.Tensor, tape: Tape) -> str:
    baseline = reference.logits_of(model.hf, ids)
    for i, block in enumerate(model.blocks):
        found = replay(model, ids, tape, cut=tape.first_call(i), skipped=frozenset({i})).logits
        expected = reference.logits_without(model.hf, block, ids)
        if not torch.equal(found, expected):
            return f"skip of block {i} differs by {_difference(found, expected)}"
        if float((found - baseline).abs().max()) < VISIBLE:
            return f"skip of block {i} changes nothing"
    return ""


class Edits:
    """Every ablation on every component: a replay from its cut against a plain forward pass."""

    def __init__(self, model: Model, ids: torch.Tensor, tape: Tape) -> None:
        self._model, self._ids, self._tape = model, ids, tape
        self._baseline = reference.logits_of(model.hf, ids)
        self.n_compared = self.n_seen = 0

    def misfit(self) -> str:
        """Edit and compare, up to the first misfit; `Findings.traces` says what is left changed."""
        model = self._model
        for c in model.everything():
            for name in EDITS:
                _, ablation = ablation_for(name, c)
                if ablation.refusal(model, c):
                    continue
                if misfit := self._misfit_of(c, name, ablation):
                    return f"{name} of {c.name} in block {c.block} {misfit}"
        return ""

    def _misfit_of(self, c: Component, name: str, ablation: Ablation) -> str:
        change = ablation.change(self._model, c, Setting(0, [torch.tensor(0.5)] * len(c.outputs)))
        compared = name in COMPARED or (c.kind == "parameter" and name == "shrink:0.5")
        return self._compare(change) if compared else self._enter(change)

    def _enter(self, change: Change) -> str:
        with change.edit():
            return ""

    def _compare(self, change: Change) -> str:
        try:
            with change.edit():
                expected = reference.logits_of(self._model.hf, self._ids)
                found = replay(
                    self._model, self._ids, self._tape, cut=cut_of(self._tape, change)
                ).logits
        except UnsupportedModelError:  # a module that no text reaches; nothing can be said of it
            return ""
        self.n_compared += 1
        self.n_seen += not torch.equal(expected, self._baseline)
        same = torch.equal(found.nan_to_num(), expected.nan_to_num())
        return "" if same else f"differs by {_difference(found, expected)}"


def _loss_misfit(engine: Engine, ids: torch.Tensor) -> str:
    hf, blocks = engine.model.hf, engine.model.blocks
    recording = engine.record(ids)
    misfit = _wrong_losses(engine.token_losses(recording), reference.logits_of(hf, ids), ids)
    if misfit:
        return f"baseline: {misfit}"
    for i, block in enumerate(blocks):
        found = engine.token_losses(recording, skip_block(i))
        if misfit := _wrong_losses(found, reference.logits_without(hf, block, ids), ids):
            return f"without block {i}: {misfit}"
    return ""


def _wrong_losses(found: torch.Tensor, logits: torch.Tensor, ids: torch.Tensor) -> str:
    expected = reference.losses_of(logits, ids)
    if found.shape != expected.shape:
        return f"losses of shape {list(found.shape)} instead of {list(expected.shape)}"
    error = found.double() - expected
    mean, worst = float(error.mean(1).abs().max()), float(error.abs().max())
    if mean <= MEAN_TOLERANCE and worst <= TOKEN_TOLERANCE:
        return ""
    return f"the mean of a sequence differs by {mean:.1e} nats, a token by {worst:.1e}"


def _difference(found: torch.Tensor, expected: torch.Tensor) -> str:
    if found.shape != expected.shape:
        return f"shape {list(found.shape)} instead of {list(expected.shape)}"
    return f"{float((found - expected).abs().max()):.1e}"


def _traces(hf: transformers.PreTrainedModel, before: dict[str, torch.Tensor]) -> str:
    left = reference.traces_on(hf)
    if left:
        return f"left on the model: {', '.join(left)}"
    same = reference.same_tensors(reference.tensors_of(hf), before)
    return "" if same else "a parameter or buffer is not what it was"


def _remarks(model: Model, tape: Tape) -> list[str]:
    remarks = []
    if (kinds := len(block_kinds(model.blocks))) > 1:
        remarks.append(f"{kinds} kinds of block")
    if any(len(model.blocks_that_hold([p])) > 1 for p in model.hf.parameters()):
        remarks.append("blocks share parameters")
    output = tape.outputs[-1]
    if not torch.is_tensor(output):
        remarks.append(f"a block returns a {type(output).__name__} of {len(output)}")
        output = output[0]
    if output.dim() != 3:
        remarks.append(f"hidden state of {output.dim()} axes")
    if any(any(effects) for effects in tape.effects):
        remarks.append("blocks write into shared arguments")
    if others := _other_lists(model):
        remarks.append(f"not taken for blocks: {', '.join(others)}")
    return remarks


def _other_lists(model: Model) -> list[str]:
    """Lists of modules beside the blocks that are as long, and so might be blocks as well."""
    inside = {id(m) for block in model.blocks for m in block.modules()}
    return [
        f"`{name}`"
        for name, module in model.hf.named_modules()
        if isinstance(module, torch.nn.ModuleList)
        and len(module) == len(model.blocks)
        and name != model.blocks_path
        and id(module) not in inside
    ]
