"""What keeps a suite from being run or compared."""


class SmokeError(ValueError):
    """A suite cannot be run or compared; says what is missing and what to do."""
