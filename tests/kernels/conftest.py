"""Kernels run on a GPU where there is one, else on the CPU through Triton's interpreter, at smaller shapes."""

import os

import pytest
import torch

# Triton reads this when a kernel is defined, so it is set before any test module imports one.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

    from triton.runtime import interpreter

    _patch_lang_tensor = interpreter._patch_lang_tensor

    def _patch_lang_tensor_index(tensor, scope):
        """Triton 3.6 asks numpy for int(array of one element), which numpy 2.4 no longer gives: loop bounds need it."""
        _patch_lang_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_lang_tensor_index


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def generator(request: pytest.FixtureRequest, device: torch.device) -> torch.Generator:
    """Seeded by the test's own name: fresh for every test, the same on every run."""
    seed = sum(ord(letter) * (index + 1) for index, letter in enumerate(request.node.name))
    return torch.Generator(device).manual_seed(seed)
