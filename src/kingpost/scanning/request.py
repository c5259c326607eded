"""What a scan is asked for: the sites, and for each the component and what is done to it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kingpost.ablations import Ablation, ablation_for
from kingpost.errors import UsageError
from kingpost.measures import HIDDEN_MEASURES, MEASURES, WEIGHT_MEASURES, check_weight_measure
from kingpost.models import Component, Model
from kingpost.study import Site


@dataclass(frozen=True, eq=False)
class Target:
    """One thing to measure.

    Attributes:
        site: What it is called in the ledger.
        component: What it is in the model.
        ablation: What is done to the component; None for measures that do nothing to it.
    """

    site: Site
    component: Component
    ablation: Ablation | None = None

    @property
    def family(self) -> str:
        """The measure without its arguments."""
        return self.site.measure.partition(":")[0]


def targets(
    model: Model, where: Sequence[str], ablation: str, measures: Sequence[str]
) -> list[Target]:
    """Everything that a scan measures, by measure and block.

    Raises:
        UsageError: A name is not understood, matches nothing, or asks for something that is not
            defined where it is asked for.
    """
    found: dict[Site, Target] = {}
    for measure in dict.fromkeys(measures):
        check_measure(measure)
        chosen = (
            _ablated(model, where, ablation)
            if measure == "ablation"
            else _observed(model, where, measure)
        )
        for target in chosen:
            found.setdefault(target.site, target)
    return list(found.values())


def check_measure(measure: str) -> None:
    """Raise a UsageError for a measure that there is not."""
    family = measure.partition(":")[0]
    if family not in MEASURES:
        raise UsageError(f"Unknown measure {measure!r}: there is {', '.join(MEASURES)}.")
    if family in WEIGHT_MEASURES:
        check_weight_measure(measure)
    elif family != measure:
        raise UsageError(f"Measure {measure!r} is not understood: {family} takes no argument.")


def needs_weights_only(measures: Sequence[str]) -> bool:
    """Whether measures can be taken without running the model."""
    return all(m.partition(":")[0] in WEIGHT_MEASURES for m in measures)


def _ablated(model: Model, where: Sequence[str], name: str) -> Iterator[Target]:
    """The exact measure on every component on which the ablation makes sense."""
    for asked in where:
        refusals, n_targets = [], 0
        for component in model.select([asked]):
            called, ablation = ablation_for(name, component)
            refusal = ablation.refusal(model, component)
            if refusal:
                refusals.append(refusal)
                continue
            n_targets += 1
            site = Site(component.block, component.name, "ablation", called)
            yield Target(site, component, ablation)
        # Of a group some members may be left out; a name of which nothing remains is a mistake.
        if not n_targets:
            raise UsageError(refusals[0])


def _observed(model: Model, where: Sequence[str], measure: str) -> Iterator[Target]:
    components = model.select(where)
    if measure in HIDDEN_MEASURES:
        components = [c for c in components if c.kind == "block"]
        if not components:
            raise UsageError(f"{measure} is a measure of whole blocks: add --where blocks.")
    for c in components:
        yield Target(Site(c.block, c.name, measure), c)
