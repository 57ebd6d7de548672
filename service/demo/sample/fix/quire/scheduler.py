"""Continuous batching: requests join and leave the running batch between any two steps."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from quire.cache import PagedCache, Write
from quire.request import Request


class Model(Protocol):
    def embed(self, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of the tokens: float32 [n, width] each."""
        ...

    def sample(self, keys: np.ndarray, values: np.ndarray) -> int:
        """The next token, given everything that the request has in the cache."""
        ...


class Scheduler:
    """Admits waiting requests while pages last, and gives every running one a token a step."""

    def __init__(self, cache: PagedCache, model: Model, max_running: int) -> None:
        self.cache = cache
        self.model = model
        self.max_running = max_running
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def submit(self, request: Request) -> None:
        """Raises `ValueError` for a request that the whole cache could not hold."""
        need = self.cache.pages_for(len(request.prompt) + request.max_tokens)
        if need > len(self.cache.keys):
            raise ValueError(f"request {request.id} needs {need} pages; the cache has {len(self.cache.keys)}")
        self.waiting.append(request)

    def step(self) -> list[Request]:
        """Advances every running request by one token and returns those that are done."""
        self._admit()
        finished = []
        for request in list(self.running):
            request.output.append(self.model.sample(*self.cache.read(request.id)))
            if request.done:
                self.running.remove(request)
                self.cache.release(request.id)
                finished.append(request)
        self._make_room()
        self.cache.append_batch(
            [Write(request.id, *self.model.embed(request.output[-1:])) for request in self.running]
        )
        return finished

    def _admit(self) -> None:
        """Moves requests from waiting to running while their tokens fit; all prompts are written at once."""
        writes = []
        # Pages are taken only when the batch is written, so the loop counts down what it has promised.
        free = self.cache.free_pages
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            need = self.cache.pages_for(len(request.tokens))
            if need > free:
                break
            free -= need
            self.waiting.popleft()
            self.running.append(request)
            self.cache.open(request.id)
            writes.append(Write(request.id, *self.model.embed(request.tokens)))
        self.cache.append_batch(writes)

    def _make_room(self) -> None:
        """Sends the youngest requests back to wait until the others' next tokens fit."""
        while self._pages_needed() > self.cache.free_pages:
            youngest = self.running.pop()
            self.cache.release(youngest.id)
            self.waiting.appendleft(youngest)

    def _pages_needed(self) -> int:
        return sum(self.cache.length(request.id) % self.cache.page_size == 0 for request in self.running)
