"""Words and numbers as a figure prints them."""

from collections.abc import Sequence

_COMPONENT_NAMES = {
    "attn": "attention",
    "mlp": "MLP",
    "q_proj": "Q-projection",
    "k_proj": "K-projection",
    "v_proj": "V-projection",
    "o_proj": "O-projection",
    "alpha": "α",
    "beta": "β",
}


def parameter_count(n_parameters: int) -> str:
    """A number of parameters with three significant digits: 134,515,008 is `135M`."""
    scaled, digits = float(f"{n_parameters:.2e}"), 0
    for suffix, unit in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if scaled >= unit:
            scaled /= unit
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f}{suffix}"
    return str(n_parameters)


def series_labels(keys: Sequence[tuple[str, str]]) -> list[str]:
    """Legend labels of (component, ablation) pairs.

    The ablation stands in brackets unless several series share one, which the caption then names
    (see `shared_ablation`).
    """
    bare = shared_ablation(keys) is not None
    names = [_COMPONENT_NAMES.get(component, component) for component, _ in keys]
    if bare:
        return names
    return [f"{name} ({ablation})" for name, (_, ablation) in zip(names, keys, strict=True)]


def shared_ablation(keys: Sequence[tuple[str, str]]) -> str | None:
    """The one ablation that several series have in common, else None."""
    ablations = {ablation for _, ablation in keys}
    return ablations.pop() if len(keys) > 1 and len(ablations) == 1 else None


def short_value(value: float) -> str:
    """A value in nats per token, short enough to stand beside a marker: `−0.012`, `4e−5`."""
    if value == 0:
        return "0"
    if abs(value) >= 1e-3:
        return f"{value:.2g}".replace("-", "−")
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")
