"""Train a model of the reference family with the Trainer of transformers."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    OlmoHybridForCausalLM,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    default_data_collator,
)
from transformers.utils import logging as transformers_logging

from kingpost.errors import KingpostError, UsageError
from kingpost.models import device_named, dtype_named, machine, quiet
from kingpost.reference.corpus import Corpus, load_corpus, write_documents
from kingpost.reference.family import FAMILY, build, shape_of
from kingpost.reference.history import write_history
from kingpost.reference.memory import keep_freed_memory
from kingpost.reference.progress import Report, TrainProgress
from kingpost.reference.record import (
    FILE,
    Recipe,
    check_recipe,
    read_record,
    write_record,
)
from kingpost.texts import PYTHON_LIBRARY

CHECKPOINTS = "checkpoints"
VALIDATION = "validation.jsonl"
_TRAINER_STATE = "trainer_state.json"
_SAVES = 10
_LOGS = 100
_VALIDATION_SEQUENCES = 32
_WIDTH = FAMILY["D8"].hidden


def train(
    size: str,
    out: str | Path,
    text: str = PYTHON_LIBRARY,
    *,
    tokens: int = 10_000_000,
    length: int = 256,
    batch: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    device: str = "auto",
    resume: bool = False,
    progress: Callable[[TrainProgress], None] | None = None,
) -> dict[str, Any]:
    """Train a model of the reference family from random weights.

    AdamW (Loshchilov and Hutter, arXiv 1711.05101) with β = (0.9, 0.95) and weight decay 0.1 on
    matrices, 5% of warm-up and a cosine down to a tenth, gradients clipped to norm 1, float32
    weights under bfloat16 autocast where the device multiplies that natively.

    The folder becomes one that `from_pretrained` loads, with the tokenizer; beside it are
    `training.json` (recipe, machine, result), `history.csv`, `loss.png`, TensorBoard events,
    `validation.jsonl` (the held-out documents) and the last two checkpoints of ten. The same recipe
    gives the same weights on the same machine, also when it was killed and resumed.

    Args:
        size: `D2`, `D8`, `D12` or `D16`.
        out: The folder.
        text: `python-library` (the standard library's sources, texts and help topics), or a source
            as for `kingpost.load_text`. At most 1 GiB is read, more than once if need be.
        tokens: How many to train on.
        length: Tokens of a sequence.
        batch: Sequences of a step; without it 4 on a CPU, else 64.
        learning_rate: The highest; without it 0.001 · 512 / hidden size.
        seed: Of the weights and of the order of the sequences.
        device: A torch device, or `auto`: an accelerator if there is one, else the CPU.
        resume: Go on with what the folder has, if it has something.
        progress: Called at each logged step.

    Returns:
        What is in `training.json`.

    Raises:
        UsageError: A size, device or number is wrong, or the folder holds something else.
        KingpostError: The text cannot be read or is too short.
    """
    target = device_named(device)
    recipe = Recipe(
        size=size,
        text=text,
        tokens=tokens,
        length=length,
        batch=batch or (4 if target.type == "cpu" else 64),
        learning_rate=learning_rate or 1e-3 * _WIDTH / shape_of(size).hidden,
        seed=seed,
    )
    folder = Path(out)
    if _begun(folder, recipe, resume=resume) and (record := read_record(folder)).get("result"):
        return record
    return _run(recipe, folder, target, progress)


def _begun(folder: Path, recipe: Recipe, *, resume: bool) -> bool:
    """Whether the folder has a training of this recipe.

    Raises:
        UsageError: It has something else, or it is not to be resumed.
    """
    if not folder.exists() or not any(folder.iterdir()):
        return False
    if not (folder / FILE).exists():
        raise UsageError(f"{folder} is not empty and no training: give another --out.")
    if not resume:
        raise UsageError(f"{folder} has a training: go on with --resume, or give another --out.")
    check_recipe(folder, recipe)
    return True


def _run(
    recipe: Recipe,
    folder: Path,
    device: torch.device,
    progress: Callable[[TrainProgress], None] | None,
) -> dict[str, Any]:
    """Train from the last checkpoint, or from the start where there is none."""
    keep_freed_memory()
    corpus = load_corpus(recipe.text)
    _check_length(corpus, recipe)
    record = _begin(recipe, folder, device, corpus)
    checkpoint = _last_checkpoint(folder / CHECKPOINTS)
    model = _load(checkpoint) if checkpoint else build(recipe.size, recipe.seed)
    pieces, held_out = (_pieces(ids, recipe.length) for ids in (corpus.train, corpus.validation))
    report = Report(recipe, folder, progress)
    trainer = _Trainer(
        model=model,
        args=_arguments(recipe, folder, device),
        train_dataset=_Sequences(pieces, _order(len(pieces), recipe)),
        eval_dataset=_Sequences(held_out, _scored(len(held_out))),
        data_collator=default_data_collator,
        processing_class=corpus.tokenizer,
        optimizers=(_optimizer(model, recipe.learning_rate), None),
        callbacks=[report, *_tensorboard(folder)],
    )
    trainer.remove_callback(PrinterCallback)
    with _no_bars():
        trainer.train(resume_from_checkpoint=checkpoint)
        model.save_pretrained(folder)
        corpus.tokenizer.save_pretrained(folder)
    history = trainer.state.log_history
    write_history(history, folder)
    record["result"] = report.result(history)
    write_record(folder, record)
    return record


def _begin(recipe: Recipe, folder: Path, device: torch.device, corpus: Corpus) -> dict[str, Any]:
    """Write what is known before the first step.

    Raises:
        KingpostError: The folder was begun with other tokens, or cannot be written.
    """
    if (folder / FILE).exists() and read_record(folder)["corpus"]["sha256"] != corpus.digest:
        raise UsageError(
            f"{folder} was begun when {recipe.text!r} was another text (or another Python's): "
            "give another --out."
        )
    record = {
        "recipe": asdict(recipe),
        "corpus": {
            "sha256": corpus.digest,
            "documents": corpus.n_documents,
            "held_out_documents": len(corpus.held_out),
            "tokens": len(corpus.train),
            "held_out_tokens": len(corpus.validation),
            "vocabulary": len(corpus.tokenizer),
            "notes": list(corpus.notes),
        },
        "machine": machine(device),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder, record)
        write_documents(corpus.held_out, folder / VALIDATION)
    except OSError as error:
        raise KingpostError(f"{folder} cannot be written ({error.strerror}).") from error
    return record


def _check_length(corpus: Corpus, recipe: Recipe) -> None:
    for what, ids in (("training", corpus.train), ("held-out", corpus.validation)):
        if len(ids) < recipe.length:
            raise KingpostError(
                f"{recipe.text!r} has {len(ids):,} {what} tokens, too few for one sequence of "
                f"{recipe.length}: give a longer text, or --length {len(ids)} or less."
            )


def _arguments(recipe: Recipe, folder: Path, device: torch.device) -> TrainingArguments:
    every = math.ceil(recipe.steps / _SAVES)
    return TrainingArguments(
        output_dir=str(folder / CHECKPOINTS),
        max_steps=recipe.steps,
        per_device_train_batch_size=recipe.batch,
        per_device_eval_batch_size=recipe.batch,
        train_sampling_strategy="sequential",  # `_order` has shuffled already
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        warmup_steps=max(1, recipe.steps // 20),
        learning_rate=recipe.learning_rate,
        max_grad_norm=1.0,
        bf16=dtype_named("auto", device) == torch.bfloat16,
        use_cpu=device.type == "cpu",
        seed=recipe.seed,
        logging_steps=math.ceil(recipe.steps / _LOGS),
        logging_first_step=True,
        eval_strategy="steps",
        eval_steps=every,
        prediction_loss_only=True,
        save_steps=every,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
    )


def _optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """AdamW whose weight decay spares norms, decays and the like: all that is no matrix."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


class _Trainer(Trainer):
    """A trainer that is given the model of the checkpoint from which it goes on."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load nothing: `_load` has.

        The trainer would look for the names that the model has in memory, and this model's files
        have others, so that it would leave some weights as they were drawn, with no more than a
        warning.
        """


def _load(checkpoint: str) -> OlmoHybridForCausalLM:
    """The model of a checkpoint, float32, with the names of its files translated."""
    with quiet():
        return OlmoHybridForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


class _Sequences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Pieces of a stream of tokens, uint16 [n, length], in a given order, which may repeat."""

    def __init__(self, pieces: Any, order: Any) -> None:
        self._pieces, self._order = pieces, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        piece = torch.from_numpy(self._pieces[self._order[index]].astype(np.int64))
        return {"input_ids": piece, "labels": piece}


def _pieces(ids: Any, length: int) -> Any:
    """A stream of tokens in pieces of equal length, [n, length]; the rest is left out."""
    return ids[: len(ids) // length * length].reshape(-1, length)


def _order(n_pieces: int, recipe: Recipe) -> Any:
    """Which piece is seen when: all of them once in a drawn order, then again in another."""
    needed = recipe.steps * recipe.batch
    rng = np.random.default_rng(recipe.seed)
    passes = [rng.permutation(n_pieces) for _ in range(-(-needed // n_pieces))]
    return np.concatenate(passes)[:needed]


def _scored(n_pieces: int) -> Any:
    """The held-out pieces that are scored: the same ones for every seed."""
    return np.random.default_rng(0).permutation(n_pieces)[:_VALIDATION_SEQUENCES]


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Hold back the bars that transformers shows while it writes a checkpoint."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _tensorboard(folder: Path) -> list[Any]:
    """Events for TensorBoard, where it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return []
    from transformers.integrations.integration_utils import TensorBoardCallback

    return [TensorBoardCallback(SummaryWriter(str(folder / "tensorboard")))]


def _last_checkpoint(checkpoints: Path) -> str | None:
    """The last checkpoint that was written to its end: its state is what is written last."""
    complete = sorted(
        (int(state.parent.name.rpartition("-")[2]), str(state.parent))
        for state in checkpoints.glob(f"checkpoint-*/{_TRAINER_STATE}")
        if state.read_text().rstrip().endswith("}")
    )
    return complete[-1][1] if complete else None
