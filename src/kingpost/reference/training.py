"""Train a model of the reference family into a folder."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kingpost.errors import KingpostError, UsageError
from kingpost.models import device_named, machine
from kingpost.reference.corpus import Corpus, load_corpus, write_documents
from kingpost.reference.family import FAMILY, MAX_LENGTH, shape_of
from kingpost.reference.history import summary, write_history
from kingpost.reference.memory import keep_freed_memory
from kingpost.reference.progress import Report, TrainProgress
from kingpost.reference.record import FILE, Recipe, check_recipe, read_record, write_record
from kingpost.reference.trainer import run_trainer
from kingpost.texts import PYTHON_LIBRARY

VALIDATION = "validation.jsonl"


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
        batch=_default_batch(target) if batch is None else batch,
        learning_rate=_default_rate(size) if learning_rate is None else learning_rate,
        seed=seed,
    )
    _check(recipe)
    folder = Path(out)
    if _begun(folder, recipe, resume=resume) and (record := read_record(folder)).get("result"):
        return record
    return _run(recipe, folder, target, progress)


def _default_batch(device: torch.device) -> int:
    """On a CPU small steps, many of them, learn more from the same tokens, at the same speed."""
    return 4 if device.type == "cpu" else 64


def _default_rate(size: str) -> float:
    """0.001 for D8, lower as the model is wider, as with μP (Yang et al., arXiv 2203.03466)."""
    return 1e-3 * FAMILY["D8"].hidden / shape_of(size).hidden


def _check(recipe: Recipe) -> None:
    """Refuse numbers that no training could have."""
    for name, least, most in (("tokens", 1, None), ("batch", 1, None), ("length", 2, MAX_LENGTH)):
        value = getattr(recipe, name)
        if value < least or (most is not None and value > most):
            limit = f"from {least} to {most}" if most else f"{least} or more"
            raise UsageError(f"{name} is {value}: give {limit}.")


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
    history = run_trainer(recipe, folder, device, corpus, Report(recipe, folder, progress))
    write_history(history, folder)
    record["result"] = summary(history, recipe)
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
