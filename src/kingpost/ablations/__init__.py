"""Ablations: what can be done to a site."""

from kingpost.ablations.ablation import Ablation as Ablation
from kingpost.ablations.ablation import Setting as Setting
from kingpost.ablations.blocks import skip_block as skip_block
from kingpost.ablations.catalogue import ABLATIONS as ABLATIONS
from kingpost.ablations.catalogue import ablation_for as ablation_for
from kingpost.ablations.change import Change as Change
from kingpost.ablations.rounding import round_to_nearest as round_to_nearest
from kingpost.ablations.weights import slice_values as slice_values
