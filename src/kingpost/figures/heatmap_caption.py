"""What the small print under Figure 2 says."""

from typing import TYPE_CHECKING

from kingpost.figures.heatmap_data import HeatmapData
from kingpost.figures.labels import parameter_count

if TYPE_CHECKING:
    from kingpost.study import Study

# The formula of each measure and its reduction over the elements of a parameter.
FORMULAS = {
    "taylor": "Σ|w·∂L/∂w|, mean over sequences",
    "taylor_signed": "−Σ w·∂L/∂w, mean over sequences",
    "fisher": "½ Σ(w·∂L/∂w)², mean over sequences",
    "wanda": "Σ|W|·‖x‖₂, mean over sequences",
    "magnitude": "‖W‖ (Frobenius)",
    "magnitude_mean": "mean |w|",
    "snr": "signal-to-noise of the singular values, over the largest",
    "quantization_error": "‖W − Q(W)‖ / ‖W‖",
}
_NORMALIZED = {
    "all": "divided by the largest of all cells",
    "column": "each column divided by its largest",
    "row": "each layer divided by its largest",
}


def measure_label(measure: str, ablation: str) -> str:
    """A measure as the caption and the colour bar name it."""
    return f"ΔLoss ({ablation})" if measure == "ablation" else measure


def heatmap_caption(
    study: "Study", data: HeatmapData, *, measure: str, ablation: str, normalize: str, scale: str
) -> str:
    """Measure, reduction, normalisation, model, text and tokens in one sentence."""
    p = study.provenance
    facts = [
        f"{measure_label(measure, ablation)}{_formula(measure)}, {_NORMALIZED[normalize]}",
        "logarithmic colours" if scale == "log" else "",
        _apart(data, normalize),
        f"Layer Importance: sum over the columns / its largest{_beside(data)}",
        f"{study.model_name} ({parameter_count(study.n_parameters)}), {p['dtype']}",
        _text(study, measure, ablation),
    ]
    return "; ".join(fact for fact in facts if fact)


def _formula(measure: str) -> str:
    if measure == "ablation":
        return ", exact, nats per token"
    family, _, bits = measure.partition(":")
    formula = FORMULAS.get(family)
    return (f" = {formula}" if formula else "") + (f" at {bits.split(':')[0]} bits" if bits else "")


def _apart(data: HeatmapData, normalize: str) -> str:
    if not data.apart:
        return ""
    scale = "by their own largest and " if normalize == "all" else ""
    return f"norms ({', '.join(data.apart)}) {scale}not in the sum"


def _beside(data: HeatmapData) -> str:
    return "" if data.exact is None else "; exact ΔLoss: skip of the block / its largest"


def _text(study: "Study", measure: str, ablation: str) -> str:
    table = study.table()
    rows = table[(table["measure"] == measure) & (table["ablation"] == ablation)]
    counts = rows.loc[rows["n_sequences"] > 0, "n_sequences"]
    if counts.empty:
        return "from the weights alone"
    fewest, most = int(counts.min()), int(counts.max())
    number = str(most) if fewest == most else f"{fewest} to {most}"
    noun = "sequence" if most == 1 else "sequences"
    return f"{number} {noun} × {study.provenance['length']} tokens of {study.provenance['text']}"
