from tests.standin.github.fixture import hub

__all__ = ["hub"]
