"""Paged KV-cache bookkeeping for small language model servers."""

from quire.allocator import OutOfPages, PageAllocator
from quire.cache import PagedCache
from quire.config import Config, ConfigError, load_config
from quire.request import Request
from quire.scheduler import Scheduler

__all__ = [
    "Config",
    "ConfigError",
    "OutOfPages",
    "PageAllocator",
    "PagedCache",
    "Request",
    "Scheduler",
    "load_config",
]
