"""Check every causal type of the installed transformers and write docs/architectures.md.

`python -m tests.architectures` checks all types; with types named, their findings are printed and
nothing is written.
"""

import multiprocessing
import os
import sys
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # as pytest has it: the modules beside this one

import torch
import transformers
from architecture_checks import MEAN_TOLERANCE, SEQUENCES, TOKEN_TOLERANCE, TOKENS, Findings, check
from configs import causal_types

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
TIME_LIMIT = 300.0
COLUMNS = (
    *(
        "type",
        "blocks at",
        "blocks",
        "calls",
        "replay",
        "skips",
        "edits",
        "losses",
        "loss in slices of",
    ),
    "remarks",
)
# Processes are forked so that a crash or an endless loop ends one type only, without the seconds
# that importing torch takes each time.
_FORK = multiprocessing.get_context("fork")


def main(types: list[str]) -> None:
    """Check the types, or all of them and write the page."""
    results = {}
    for model_type in types or causal_types():
        results[model_type] = result = check_apart(model_type)
        print(f"{model_type}: {'passes' if _passes(result) else _reason(result)}", flush=True)
        if types:
            print(f"  {result}")
    if not types:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(results), encoding="utf-8")
        print(f"written: {PAGE}")


def check_apart(model_type: str) -> Findings | str:
    """The findings about a type, from a process of its own, or why there are none."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_work, args=(model_type, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(TIME_LIMIT) else "not done within the time limit"
    except EOFError:
        process.join()
        return f"the process ended with exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()


def _work(model_type: str, sender: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        sender.send(check(model_type))
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}")


def page(results: dict[str, Findings | str]) -> str:
    """The text of docs/architectures.md."""
    passing = {t: r for t, r in results.items() if isinstance(r, Findings) and r.passes}
    wrong = {t: r for t, r in results.items() if isinstance(r, Findings) and not r.passes}
    not_run = {t: r for t, r in results.items() if isinstance(r, str)}
    return "\n".join(
        [
            "# Architectures",
            "",
            _heading(len(results), len(passing)),
            "",
            *_legend(),
            "",
            _row(COLUMNS),
            _row(["---"] * len(COLUMNS)),
            *(_row(_cells(t, r)) for t, r in passing.items()),
            "",
            "## Types that do not pass",
            "",
            *(f"- `{t}`: {_reason(r)}" for t, r in wrong.items()),
            "",
            "## Types of which no tiny model could be built and run on token ids here",
            "",
            *(f"- `{t}`: {_reason(r)}" for t, r in not_run.items()),
            "",
        ]
    )


def _heading(n_types: int, n_passing: int) -> str:
    return (
        f"{n_passing} of the {n_types} model types that transformers {transformers.__version__} "
        f"registers for `AutoModelForCausalLM` pass the checks below (torch {torch.__version__}, "
        "float32, CPU). Written by `python -m tests.architectures`; do not edit."
    )


def _legend() -> list[str]:
    return [
        f"For each type a tiny random model is built, and {SEQUENCES} sequences of {TOKENS} tokens "
        "are run by Kingpost's engine and by plain forward passes with forward hooks:",
        "",
        "- **replay**: the logits of a replay from every cut are the same to the last bit;",
        "- **skips**: so are those without each block, and every skip changes them;",
        "- **edits**: so are those with each component and each parameter zeroed, shrunk or "
        "replaced, and every ablation leaves all parameters as they were; the number of edits that "
        "were compared;",
        "- **losses**: those of the baseline and of every skip agree with a float64 cross entropy "
        f"of the full logits within {MEAN_TOLERANCE:.0e} nats in the mean of a sequence and "
        f"{TOKEN_TOLERANCE:.0e} for a token;",
        "- **loss in slices of**: the vocabulary, which is faster, where nothing follows the "
        "output embedding; else positions, where the model makes its own logits (softcap, scale);",
        "- and afterwards every parameter and buffer is what it was, and no hook is left.",
        "",
        "`calls` is given for models that run blocks several times. A type for which the "
        "self-check chooses plain forward passes in place of replay has *plain* in its columns.",
    ]


def _cells(model_type: str, findings: Findings) -> list[str]:
    looped = findings.n_calls != findings.n_blocks
    way = "bitwise" if findings.replays else "*plain*"
    slices = "vocabulary" if findings.slices else "positions"
    remarks = list(findings.remarks) + ([] if findings.replays else list(findings.notes))
    return [
        f"`{model_type}`",
        f"`{findings.path}`",
        str(findings.n_blocks),
        str(findings.n_calls) if looped else "",
        *[way, way, str(findings.n_edits), "agree", slices if findings.replays else "*plain*"],
        "; ".join(remarks),
    ]


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _passes(result: Findings | str) -> bool:
    return isinstance(result, Findings) and result.passes


def _reason(result: Findings | str) -> str:
    """One line on why a type does not pass."""
    if isinstance(result, str):
        text = result
    else:
        misfits = (
            *(result.skip_misfit, result.replay_misfit, result.edit_misfit),
            *(result.loss_misfit, result.traces),
        )
        text = next(filter(None, misfits), "; ".join(result.notes) or "the fast way was not taken")
    return " ".join(text.split())[:200]


if __name__ == "__main__":
    main(sys.argv[1:])
