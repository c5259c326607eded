"""A study: everything that was measured on one model and one text, read from its run folder."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kingpost.study.ledger import ComponentRow, Site, read_ledger
from kingpost.study.statistics import estimate, noise_floor

COLUMNS = (
    "block",
    "component",
    "measure",
    "ablation",
    "value",
    "se",
    "ci_low",
    "ci_high",
    "n_sequences",
    "n_tokens",
    "note",
)
_SITE = ["measure", "ablation", "component", "block"]
# Why a measure has no number, where it has none.
_UNDEFINED = {
    "snr": "undefined: not a single matrix",
    "quantization_error": "undefined: not a matrix",
    "wanda": "undefined: not the weight of a linear layer",
    **dict.fromkeys(("taylor", "taylor_signed", "fisher"), "undefined: no gradient reaches it"),
}


def open_study(folder: str | os.PathLike[str]) -> "Study":
    """Open the study in a run folder. Loads no model.

    Raises:
        UsageError: There is no study in the folder.
        KingpostError: The ledger cannot be read.
    """
    return Study(Path(folder))


class Study:
    """All that was measured on one model and one text.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with read_ledger(folder) as ledger:
            self.provenance: dict[str, Any] = ledger.provenance
            self.sessions = ledger.sessions()
            self._sequences = ledger.sequences()
            self._observations = ledger.observations()
            self._constants = ledger.constants()
            self._components = ledger.components()
            self._same = ledger.same()

    def __repr__(self) -> str:
        return (
            f"Study({self.model_name}, {len(self.table())} cells, "
            f"{len(self._sequences)} sequences of {self.provenance['text']})"
        )

    @property
    def model_name(self) -> str:
        """What figures call the model."""
        return str(self.provenance["model"])

    @property
    def n_parameters(self) -> int:
        """Parameters of the model; tied and shared ones count once."""
        return int(self.provenance["n_parameters"])

    @property
    def n_blocks(self) -> int:
        """Blocks of the model."""
        return int(self.provenance["n_blocks"])

    @property
    def noise_floor(self) -> float:
        """Effects up to this size, nats per token, may be rounding; NaN where it is not known."""
        return noise_floor(
            [
                s.other_layout_loss - s.base_loss
                for s in self._sequences
                if s.other_layout_loss is not None and s.base_loss is not None
            ]
        )

    def table(self) -> pd.DataFrame:
        """One row for each site: the mean of its measure with its uncertainty.

        The columns are those of the csv file. The unit of a value is nats per token for the
        measure `ablation` and none for `influence` and `angular`. The order does not depend on the
        order in which the sites were measured.
        """
        return self._table.copy()

    @cached_property
    def _table(self) -> pd.DataFrame:
        rows = [
            self._cell(Site(block, component, measure, ablation), cell)
            for (measure, ablation, component, block), cell in self.observations().groupby(_SITE)
        ]
        rows += [self._constant_cell(site, value) for site, value in self._constants.items()]
        return pd.DataFrame(rows, columns=list(COLUMNS)).sort_values(_SITE).reset_index(drop=True)

    def _cell(self, site: Site, cell: pd.DataFrame) -> dict[str, Any]:
        e = estimate(cell["value"], n_tokens=cell["n_tokens"], documents=cell["document"])
        return {
            **site._asdict(),
            "value": e.value,
            "se": e.se,
            "ci_low": e.ci_low,
            "ci_high": e.ci_high,
            "n_sequences": e.n_sequences,
            "n_tokens": e.n_tokens,
            "note": "; ".join(self._notes(site, cell)),
        }

    def _constant_cell(self, site: Site, value: float) -> dict[str, Any]:
        known = np.isfinite(value)
        note = "from the weights alone: no sampling error" if known else _UNDEFINED[_family(site)]
        return {
            **site._asdict(),
            **dict.fromkeys(("se", "ci_low", "ci_high"), np.nan),
            "value": value,
            "n_sequences": 0,
            "n_tokens": 0,
            "note": note,
        }

    def _notes(self, site: Site, cell: pd.DataFrame) -> list[str]:
        notes = []
        finite = np.isfinite(cell["value"])
        if not finite.any() and _family(site) in _UNDEFINED:
            return [_UNDEFINED[_family(site)]]
        if not finite.all():
            notes.append(f"not finite in {int((~finite).sum())} of {len(cell)} sequences")
        elif site.measure == "ablation" and abs(cell["value"].mean()) <= self.noise_floor:
            notes.append("below the noise floor")
        if site in self._same:
            notes.append(f"the same as {self._same[site]}, measured once")
        if len(cell) == 1:
            notes.append("one sequence: spread unknown")
        elif cell["document"].nunique() == 1:
            notes.append("one document: the interval speaks of it alone")
        return notes

    def components(self) -> pd.DataFrame:
        """What the model is made of, measured or not.

        Columns: block, component, kind (`block`, `sublayer`: several tensors with one purpose,
        `role`: weight and bias of one projection, `parameter`), n_parameters, and parameters, the
        names of the parameters that the component is made of, wholly or in part.
        """
        return pd.DataFrame(self._components, columns=list(ComponentRow._fields))

    def observations(self) -> pd.DataFrame:
        """One row for each site and sequence.

        Columns: block, component, measure, ablation, sequence, document, n_tokens (predicted
        tokens) and value (float64, in the unit of the measure).
        """
        columns = ["block", "component", "measure", "ablation", "sequence", "value"]
        values = pd.DataFrame(self._observations, columns=columns)
        values["value"] = values["value"].astype("float64")
        sequences = pd.DataFrame(
            [(s.sequence, s.document, s.n_tokens) for s in self._sequences],
            columns=["sequence", "document", "n_tokens"],
        )
        merged = values.merge(sequences, on="sequence", how="left", validate="many_to_one")
        return merged[[*columns[:-1], "document", "n_tokens", "value"]]

    def batches(self) -> list[list[int]]:
        """The sequence numbers that went through the model together, batch by batch."""
        batches: dict[int | None, list[int]] = {}
        for s in self._sequences:
            batches.setdefault(s.batch, []).append(s.sequence)
        batches.pop(None, None)
        return list(batches.values())

    def sequences(self) -> pd.DataFrame:
        """One row for each sequence: sequence, document, token_ids (int32 [T]), base_loss."""
        return pd.DataFrame(
            [(s.sequence, s.document, s.token_ids, s.base_loss) for s in self._sequences],
            columns=["sequence", "document", "token_ids", "base_loss"],
        ).astype({"base_loss": "float64"})


def _family(site: Site) -> str:
    """The measure of a site without its argument."""
    return site.measure.partition(":")[0]
