"""Scanning: a request becomes units of work, they are run, and what they give is committed."""

from kingpost.scanning.conductor import scan as scan
from kingpost.scanning.progress import ScanProgress as ScanProgress
from kingpost.scanning.replacements import Replacements as Replacements
from kingpost.scanning.request import Target as Target
from kingpost.scanning.request import needs_weights_only as needs_weights_only
from kingpost.scanning.request import targets as targets
