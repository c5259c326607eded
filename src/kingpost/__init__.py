"""Kingpost: which layers and which parameters of a transformer language model carry the load?

This is the whole public API. Names are loaded when they are first used, so that a finished run can
be read and drawn where no model can be loaded.
"""

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kingpost.errors import KingpostError as KingpostError
    from kingpost.errors import UsageError as UsageError
    from kingpost.figures import plot_bars as plot_bars
    from kingpost.figures import plot_heatmap as plot_heatmap
    from kingpost.figures import save_figure as save_figure
    from kingpost.models import Model as Model
    from kingpost.models import add_rule as add_rule
    from kingpost.models import load_model as load_model
    from kingpost.scanning import ScanProgress as ScanProgress
    from kingpost.scanning import scan as scan
    from kingpost.study import Study as Study
    from kingpost.study import agreement as agreement
    from kingpost.study import open_study as open_study
    from kingpost.study import write_csv as write_csv
    from kingpost.study import write_json as write_json
    from kingpost.study import write_parquet as write_parquet
    from kingpost.texts import Text as Text
    from kingpost.texts import load_text as load_text
    from kingpost.verification import verify as verify

__version__ = _version("kingpost")

_HOMES = {
    "KingpostError": "errors",
    "UsageError": "errors",
    "plot_bars": "figures",
    "plot_heatmap": "figures",
    "save_figure": "figures",
    "Model": "models",
    "add_rule": "models",
    "load_model": "models",
    "ScanProgress": "scanning",
    "scan": "scanning",
    "Study": "study",
    "agreement": "study",
    "open_study": "study",
    "write_csv": "study",
    "write_json": "study",
    "write_parquet": "study",
    "Text": "texts",
    "load_text": "texts",
    "verify": "verification",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kingpost' has no attribute {name!r}")
    return getattr(importlib.import_module(f"kingpost.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
