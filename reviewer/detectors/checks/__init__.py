"""Our own checks, for what no kept analyser covers. Each reads one file and yields the line ranges at fault.

They prefer to miss a fault over reporting one that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reviewer.detectors.checks import capture, cpp, cuda, python, text, triton
from reviewer.detectors.source import Source, Span

Check = Callable[[Source], Iterator[Span]]

CHECKS: dict[str, Check] = {
    "array-delete-mismatch": cpp.array_delete_mismatch,
    "assert-true-of-two": python.assert_true_of_two,
    "bidirectional-control": text.bidirectional_control,
    "capture-allocator-call": capture.allocator_call,
    "capture-host-allocation": capture.host_allocation,
    "capture-host-effect": capture.host_effect,
    "capture-host-read": capture.host_read,
    "capture-synchronise": capture.synchronise,
    "committed-secret": text.committed_secret,
    "conflict-markers": text.conflict_markers,
    "coroutine-not-awaited": python.coroutine_not_awaited,
    "default-stream-launch": cuda.default_stream_launch,
    "float-equality": python.float_equality,
    "graph-not-kept": capture.graph_not_kept,
    "header-guard": cpp.header_guard,
    "late-binding-closure": python.late_binding_closure,
    "literal-attribute": python.literal_attribute,
    "native-capture-call": cuda.native_capture_call,
    "native-shell-call": cpp.native_shell_call,
    "removed-module": python.removed_module,
    "test-without-assertion": python.test_without_assertion,
    "triton-arange-constexpr": triton.arange_constexpr,
    "triton-arange-length": triton.arange_length,
    "triton-device-print": triton.device_print,
    "triton-int32-offset": triton.int32_offset,
    "triton-load-without-other": triton.load_without_other,
    "triton-unmasked-access": triton.unmasked_access,
    "unchecked-launch": cuda.unchecked_launch,
    "unpinned-model": python.unpinned_model,
    "virtual-destructor": cpp.virtual_destructor,
    "world-writable": python.world_writable,
}
