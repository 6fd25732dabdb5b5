"""The one error that speaks to people: bad input, said in a sentence."""

QUOTED = 60  # characters of an argument that a sentence repeats


class InputError(ValueError):
    """Raised for bad input from a person; its message says what was wrong and what is allowed.

    The command line prints the message to stderr and exits with status 2, without a traceback.
    """


def quoted(text: str) -> str:
    """An argument as a sentence repeats it: its first characters, in quotation marks."""
    return repr(text if len(text) <= QUOTED else text[: QUOTED - 1] + "…")
