"""Which files never go to a model: lock files, generated, vendored and binary ones. They are listed instead."""

from __future__ import annotations

import re

from reviewer.checkout.base import Checkout
from reviewer.diff import FileDiff
from reviewer.globs import matches
from reviewer.model import Side
from reviewer.policy import ReviewPolicy

LOCK_FILES = (
    "*.lock",
    "*.lockfile",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "pnpm-lock.yaml",
    "bun.lockb",
    "go.sum",
    "MODULE.bazel.lock",
)
VENDORED = ("vendor/", "third_party/", "third-party/", "node_modules/", "bower_components/", "external/")
GENERATED = (
    "*_pb2.py",
    "*_pb2.pyi",
    "*_pb2_grpc.py",
    "*.pb.go",
    "*.pb.cc",
    "*.pb.h",
    "*.min.js",
    "*.min.css",
    "*.map",
    "*.snap",
    "*.designer.cs",
    "*.generated.*",
)

_MARKER = re.compile(rb"@generated\b|\bDO NOT EDIT\b|\bautomatically generated\b", re.IGNORECASE)
_MARKER_WITHIN = 1024


def why_excluded(file: FileDiff, checkout: Checkout, policy: ReviewPolicy) -> str:
    """The phrase's key of the reason why no model sees this file, or "" where one does."""
    path = file.path
    if not matches(path, policy.paths):
        return "outside_paths"
    if policy.ignore and matches(path, policy.ignore):
        return "ignored_by_policy"
    if file.binary:
        return "binary"
    if file.submodule:
        return "submodule"
    if matches(path, LOCK_FILES):
        return "lock_file"
    if matches(path, VENDORED):
        return "vendored"
    if matches(path, GENERATED) or _marked_generated(file, checkout):
        return "generated"
    return ""


def _marked_generated(file: FileDiff, checkout: Checkout) -> bool:
    """Only a marker that the base already bears counts: else a pull request could excuse itself."""
    if file.status == "added":
        return False
    before = checkout.read(file.old_path, Side.LEFT)
    return before is not None and _MARKER.search(before[:_MARKER_WITHIN]) is not None
