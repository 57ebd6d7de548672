"""Errors that concern one request."""


class RequestError(ValueError):
    """A request that cannot be served; says what about it, and concerns that request alone."""
