"""The read-only tools that a model may use on the checkout, and the budget they draw on."""

from reviewer.tools.fence import fence
from reviewer.tools.toolbox import Toolbox, ToolRecord

__all__ = ["ToolRecord", "Toolbox", "fence"]
