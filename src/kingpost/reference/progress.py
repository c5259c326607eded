"""What is known of a training while it runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from kingpost.reference.history import write_history
from kingpost.reference.record import Recipe


@dataclass(frozen=True)
class TrainProgress:
    """How far a training is."""

    tokens: int
    total: int
    loss: float
    """Mean over the steps since the last report, nats per token."""
    validation_loss: float | None
    """The last one, on held-out documents, nats per token."""
    tokens_per_second: float
    seconds_left: float


class Report(TrainerCallback):
    """Adds the time to the trainer's history, draws it, and tells whoever asked."""

    def __init__(
        self, recipe: Recipe, folder: Path, tell: Callable[[TrainProgress], None] | None
    ) -> None:
        self._recipe, self._folder, self._tell = recipe, folder, tell
        self._began = self._before = 0.0
        self._first_step = 0
        self._validation_loss: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock where the checkpoint's history ends."""
        history = state.log_history
        self._before = max((entry.get("seconds", 0.0) for entry in history), default=0.0)
        self._began = time.monotonic()
        self._first_step = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the time to the newest entry of the history, and report it."""
        entry = state.log_history[-1]
        passed = time.monotonic() - self._began
        entry["seconds"] = round(self._before + passed, 3)
        self._validation_loss = entry.get("eval_loss", self._validation_loss)
        steps = state.global_step - self._first_step
        if self._tell is None or "loss" not in entry or steps == 0:
            return
        a_step = self._recipe.batch * self._recipe.length
        self._tell(
            TrainProgress(
                tokens=state.global_step * a_step,
                total=self._recipe.steps * a_step,
                loss=entry["loss"],
                validation_loss=self._validation_loss,
                tokens_per_second=steps * a_step / passed,
                seconds_left=(self._recipe.steps - state.global_step) * passed / steps,
            )
        )

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Draw what is known so far."""
        write_history(state.log_history, self._folder)
