"""skip: a block returns its input hidden state."""

from kingpost.ablations.ablation import Ablation, Setting
from kingpost.ablations.change import Change
from kingpost.models import Component, Model


def skip_block(block: int) -> Change:
    """Take a block away: element 0 of its output is its input hidden state.

    What the block writes for other blocks (shared keys and values, router state) stays.
    """
    return Change(touched=frozenset({block}), skipped=frozenset({block}))


def skip() -> Ablation:
    """The ablation of whole blocks."""

    def refusal(_: Model, component: Component) -> str:
        if component.kind == "block":
            return ""
        return f"skip takes whole blocks away, and {component.name} is a part of one: use zero."

    def change(_: Model, component: Component, __: Setting) -> Change:
        return skip_block(component.block)

    return Ablation(refusal, change)
