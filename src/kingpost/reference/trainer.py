"""The training loop: transformers' Trainer, set up so that a killed run ends like a whole one."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import (
    OlmoHybridForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)
from transformers.utils import logging as transformers_logging

from kingpost.errors import UsageError
from kingpost.models import dtype_named, quiet
from kingpost.reference.corpus import Corpus
from kingpost.reference.family import build
from kingpost.reference.record import Recipe
from kingpost.reference.sequences import training_sequences, validation_sequences

_CHECKPOINTS = "checkpoints"
_WRITTEN_LAST = "trainer_state.json"
_SAVES = 10
_LOGS = 100


def run_trainer(
    recipe: Recipe, folder: Path, device: torch.device, corpus: Corpus, report: TrainerCallback
) -> list[dict[str, Any]]:
    """Train from the last checkpoint, or from the start where there is none, and save the model.

    Returns:
        The entries of the trainer's log.

    Raises:
        UsageError: The trainer would use another device, or several.
    """
    arguments = _arguments(recipe, folder, device)
    _check_device(arguments, device, recipe)
    checkpoint = _last_checkpoint(folder / _CHECKPOINTS)
    model = _load(checkpoint) if checkpoint else build(recipe.size, recipe.seed)
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=training_sequences(corpus.train, recipe),
        eval_dataset=validation_sequences(corpus.validation, recipe.length),
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
    return list(trainer.state.log_history)


class _Trainer(Trainer):
    """A trainer that is given the model of the checkpoint from which it goes on."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load nothing: `_load` has.

        The trainer would look for the names that the model has in memory, and this model's files
        have others, so that it would leave some weights as they were drawn, with no more than a
        warning.
        """


def _arguments(recipe: Recipe, folder: Path, device: torch.device) -> TrainingArguments:
    every = math.ceil(recipe.steps / _SAVES)
    return TrainingArguments(
        output_dir=str(folder / _CHECKPOINTS),
        max_steps=recipe.steps,
        per_device_train_batch_size=recipe.batch,
        per_device_eval_batch_size=recipe.batch,
        train_sampling_strategy="sequential",  # `training_sequences` has shuffled already
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


def _check_device(arguments: TrainingArguments, device: torch.device, recipe: Recipe) -> None:
    """The trainer chooses its devices itself, and a step must have as many sequences as asked."""
    found, devices = arguments.device, arguments.train_batch_size // recipe.batch
    if (found.type, found.index or 0, devices) != (device.type, device.index or 0, 1):
        raise UsageError(
            f"The trainer would use {devices} of {found}, not {device} alone: choose one with the "
            "environment variable CUDA_VISIBLE_DEVICES."
        )


def _optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """AdamW whose weight decay spares norms, decays and the like: all that is no matrix."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


def _last_checkpoint(checkpoints: Path) -> str | None:
    """The last checkpoint that was written to its end."""
    complete = [
        (int(state.parent.name.rpartition("-")[2]), str(state.parent))
        for state in checkpoints.glob(f"checkpoint-*/{_WRITTEN_LAST}")
        if state.read_text(encoding="utf-8").rstrip().endswith("}")
    ]
    return max(complete)[1] if complete else None


def _load(checkpoint: str) -> OlmoHybridForCausalLM:
    """The model of a checkpoint, float32, with the names of its files translated."""
    with quiet():
        return OlmoHybridForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


def _tensorboard(folder: Path) -> list[TrainerCallback]:
    """Events for TensorBoard, where it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return []
    from transformers.integrations.integration_utils import TensorBoardCallback

    return [TensorBoardCallback(SummaryWriter(str(folder / "tensorboard")))]


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
