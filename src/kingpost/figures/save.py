"""Write a figure to a file, with the same bytes whenever it is the same figure."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from kingpost.errors import KingpostError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 300

# Dates would make two runs differ; everything else in the metadata stays.
_METADATA: dict[str, dict[str, None]] = {
    "png": {},
    "pdf": {"CreationDate": None, "ModDate": None},
    "svg": {"Date": None},
}
_TEXT_STAYS_TEXT: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kingpost",
    "pdf.fonttype": 42,
}


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure as png (300 dpi), pdf or svg, as the file's suffix says.

    Saving the same figure again gives the same bytes: no date is written, and identifiers in an
    svg do not depend on chance. Text in pdf and svg stays text.

    Args:
        figure: A matplotlib figure.
        path: Where to write it; an existing file is replaced.

    Raises:
        UsageError: The suffix is none of the three.
        KingpostError: The file cannot be written there.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _METADATA:
        raise UsageError(
            f"cannot tell a figure format from {str(path)!r}: the name must end in "
            ".png, .pdf or .svg"
        )
    # Drawn in memory first, so that a failure halfway leaves no torn file behind.
    drawn = io.BytesIO()
    with mpl.rc_context(_TEXT_STAYS_TEXT):
        dpi = PNG_DPI if kind == "png" else "figure"
        figure.savefig(drawn, format=kind, dpi=dpi, metadata=_METADATA[kind])
    try:
        path.write_bytes(drawn.getvalue())
    except FileNotFoundError:
        raise KingpostError(
            f"cannot write {str(path)!r}: the folder {str(path.parent)!r} does not exist, "
            "create it first"
        ) from None
    except OSError as error:
        raise KingpostError(
            f"cannot write {str(path)!r} ({error.strerror}): choose a file in a folder that "
            "you may write to"
        ) from error
