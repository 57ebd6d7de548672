"""The one way a backend is told of a step's lengths on the host: it reads the step's inputs and leaves them alone.

A step's lengths are read by the rotary operation as much as by attention. A backend that puts a tensor of its own in
their place, or changes them, breaks its neighbour; that is an error here, before anything is computed with it.
"""

import torch

from runtime.attention import AttentionBackend, AttentionParameters
from runtime.batch import StepInputs
from runtime.contract import GraphContractError


def replan(backend: AttentionBackend, parameters: AttentionParameters, inputs: StepInputs) -> None:
    """Have the host's part of a step made from `inputs`, to which `parameters` were planned.

    Raises:
        GraphContractError: the backend moved, resized or wrote to one of the inputs, which is named.
    """
    before = [
        (name, tensor, tensor.data_ptr(), _version(tensor))
        for name, tensor in vars(inputs).items()
        if isinstance(tensor, torch.Tensor)
    ]
    backend.replan(parameters)
    now = vars(inputs)
    for name, tensor, address, version in before:
        if now[name] is not tensor or tensor.data_ptr() != address:
            raise GraphContractError(
                f"{name}: expected where the step has it, at {address:#x}, got {now[name].data_ptr():#x}"
                f" after {backend.name} replanned; a backend copies to memory of its own"
            )
        if _version(tensor) != version:
            raise GraphContractError(
                f"{name}: expected as the step wrote it, got written to while {backend.name} replanned;"
                " a backend copies to memory of its own"
            )


def _version(tensor: torch.Tensor) -> int | None:
    """How often torch wrote to a tensor; None where it does not count."""
    return None if tensor.is_inference() else tensor._version
