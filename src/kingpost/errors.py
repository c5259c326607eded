"""The one exception that Kingpost raises for what a user can mend."""


class KingpostError(Exception):
    """Something that the user can mend: the message is one sentence with what, where and how.

    The command line prints the message without a traceback and ends with status 1.
    """


class UsageError(KingpostError):
    """The request itself is wrong (an unknown option value, a site that is not there).

    The command line ends with status 2.
    """


class UnsupportedModelError(KingpostError):
    """The model does something in its forward pass that the engine cannot take apart."""


def first_line(error: BaseException) -> str:
    """What an exception of another library says, as one line; its type if it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
