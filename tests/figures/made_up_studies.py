"""Studies made up for the figures' tests: numbers of real size, no model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

COLUMNS = [
    "block", "component", "measure", "ablation", "value", "se", "ci_low", "ci_high",
    "n_sequences", "n_tokens", "note",
]  # fmt: skip


@dataclass
class MadeUpStudy:
    """What the figures ask of a study."""

    cells: pd.DataFrame
    n_blocks: int
    model_name: str = "SmolLM2-135M-Instruct"
    n_parameters: int = 134_515_008
    noise_floor: float = 2e-4
    provenance: Mapping[str, object] = field(
        default_factory=lambda: {"text": "python-docs", "length": 256, "dtype": "bfloat16"}
    )

    def table(self) -> pd.DataFrame:
        return self.cells


def rows(component, values, *, ablation="zero", measure="ablation", se=0.08, n_sequences=16):
    """Table rows of one component; `values` maps blocks to a ΔLoss, `se` is relative to it."""
    found = []
    for block, value in dict(values).items():
        error = abs(value) * se if math.isfinite(value) else math.nan
        half = 2.13 * error
        found.append(
            (block, component, measure, ablation, value, error, value - half, value + half,
             n_sequences, n_sequences * 255, "")
        )  # fmt: skip
    return found


def study(*groups, n_blocks, **settings):
    """A study from lists of rows."""
    cells = pd.DataFrame([row for group in groups for row in group], columns=COLUMNS)
    return MadeUpStudy(cells, n_blocks, **settings)


SMOLLM2_SKIP = {
    0: 7.52, 1: 3.38, 2: 0.77, 3: 0.15, 4: 0.148, 5: 0.098, 6: 0.24, 7: 0.18, 8: 1.08, 9: 0.32,
    10: 0.33, 11: 1.87, 12: 0.135, 13: 0.146, 14: 0.116, 15: 0.24, 16: 0.18, 17: 0.128, 18: 0.24,
    19: 0.245, 20: 0.40, 21: 0.26, 22: 0.24, 23: 0.32, 24: 0.60, 25: 0.14, 26: 0.185, 27: 0.31,
    28: 1.46, 29: 2.43,
}  # fmt: skip


def decaying(n_blocks, scale, *, slope=0.35):
    """Values that fall with depth and wobble, as in the published figure."""
    return {
        b: scale * (math.exp(-slope * b * 8 / n_blocks) + 0.015 * (1 + math.sin(1.7 * b)) + 0.008)
        for b in range(n_blocks)
    }


def three_components(n_blocks, **settings):
    """A model with bars for the Q-projection, α and β in every block."""
    return study(
        rows("q_proj", decaying(n_blocks, 6.0, slope=0.9)),
        rows("alpha", decaying(n_blocks, 2.5, slope=0.7)),
        rows("beta", decaying(n_blocks, 1.2, slope=0.8)),
        n_blocks=n_blocks,
        **settings,
    )
