"""The history of a training as a table, a curve, and a summary."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from kingpost.figures import save_figure
from kingpost.reference.record import Recipe

_COLUMNS = {
    "step": "step",
    "loss": "loss",
    "eval_loss": "validation_loss",
    "learning_rate": "learning_rate",
    "grad_norm": "gradient_norm",
    "seconds": "seconds",
}


def write_history(history: list[dict[str, Any]], folder: Path) -> None:
    """Write `history.csv` and `loss.png`; losses in nats per token.

    Args:
        history: Entries of the trainer's log.
        folder: The training's.
    """
    entries = [entry for entry in history if "loss" in entry or "eval_loss" in entry]
    table = pd.DataFrame(entries).reindex(columns=list(_COLUMNS)).rename(columns=_COLUMNS)
    table.to_csv(folder / "history.csv", index=False)
    with plt.style.context({"axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=(4.5, 2.8), layout="constrained")
        for column, style in (("loss", "-"), ("validation_loss", "o")):
            known = table.dropna(subset=[column])
            label = column.replace("_", " ")
            axes.plot(known["step"], known[column], style, label=label, linewidth=1, markersize=4)
        axes.set(xlabel="step", ylabel="loss (nats per token)")
        axes.legend(frameon=False)
        save_figure(figure, folder / "loss.png")
        plt.close(figure)


def summary(history: list[dict[str, Any]], recipe: Recipe) -> dict[str, Any]:
    """What came out of a training that has ended; losses in nats per token.

    Args:
        history: Entries of the trainer's log.
        recipe: What was trained.
    """
    last = {key: value for entry in history for key, value in entry.items()}
    seconds = max(entry.get("seconds", 0.0) for entry in history)
    tokens = recipe.steps * recipe.batch * recipe.length
    return {
        "tokens": tokens,
        "steps": recipe.steps,
        "first_loss": next(entry["loss"] for entry in history if "loss" in entry),
        "last_loss": last["loss"],
        "validation_loss": last["eval_loss"],
        "seconds": seconds,
        "tokens_per_second": round(tokens / seconds, 1),
    }
