"""The study: a ledger of observations, the statistics of it, and the tables. Needs no torch."""

from kingpost.study.agreement import agreement as agreement
from kingpost.study.agreement import verdicts as verdicts
from kingpost.study.agreement import write_agreement as write_agreement
from kingpost.study.cover import cover as cover
from kingpost.study.export import write_csv as write_csv
from kingpost.study.export import write_json as write_json
from kingpost.study.export import write_parquet as write_parquet
from kingpost.study.ledger import FORMAT as FORMAT
from kingpost.study.ledger import ComponentRow as ComponentRow
from kingpost.study.ledger import Ledger as Ledger
from kingpost.study.ledger import SequenceRow as SequenceRow
from kingpost.study.ledger import Site as Site
from kingpost.study.ledger import read_ledger as read_ledger
from kingpost.study.ledger import write_ledger as write_ledger
from kingpost.study.statistics import Estimate as Estimate
from kingpost.study.statistics import estimate as estimate
from kingpost.study.study import COLUMNS as COLUMNS
from kingpost.study.study import Study as Study
from kingpost.study.study import open_study as open_study
