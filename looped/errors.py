"""The one error that speaks to people: bad input, said in a sentence."""


class InputError(ValueError):
    """Raised for bad input from a person; its message says what was wrong and what is allowed.

    The command line prints the message to stderr and exits with status 2, without a traceback.
    """
