"""The node table as NumPy arrays, for whoever looks at all nodes at once.

`NodeArrays` is what is free, `Described` what the descriptions say. Both are brought up to date from the change logs of
the table when somebody asks for them, visiting only the rows named since, and start afresh when that is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from muster.core.resources import DEVICE_MILLIS

if TYPE_CHECKING:
    from muster.core.nodes import NodeTable

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

REBUILD_SHARE: Final = 4  # a derived structure starts afresh when more than one row in so many has changed


class NodeArrays:
    """[node, column] and [node, device]: what is there and what is free."""

    def __init__(self) -> None:
        self.allocatable: Int64Array = np.zeros((0, 0), np.int64)
        self.free: Int64Array = self.allocatable
        self.device_free: Int32Array = np.zeros((0, 0), np.int32)
        self._cursor = -1

    def synced(self, table: NodeTable) -> NodeArrays:
        changed = table.changes.since(self._cursor)
        if changed is None or len(table) != len(self.free) or len(changed) * REBUILD_SHARE > len(table):
            self._rebuild(table)
        elif changed:
            self._update(table, changed)
        self._cursor = table.changes.end
        return self

    def overdrawn(self) -> BoolArray:
        """By node, whether something is below zero: then the node takes nothing more (I1)."""
        below: BoolArray = np.any(self.free < 0, axis=1) | np.any(self.device_free < 0, axis=1)
        return below

    def _rebuild(self, table: NodeTable) -> None:
        shape = (len(table), len(table.columns))
        self.allocatable = np.array([facts.allocatable for facts in table.facts], np.int64).reshape(shape)
        self.free = np.array([row.free for row in table.rows], np.int64).reshape(shape)
        width = max((len(row.devices) for row in table.rows), default=0)
        self.device_free = np.array(
            [row.devices + [0] * (width - len(row.devices)) for row in table.rows], np.int32
        ).reshape(len(table), width)
        self._protect(writable=False)

    def _update(self, table: NodeTable, changed: Sequence[int]) -> None:
        width = self.device_free.shape[1]
        if any(len(table.rows[n].devices) > width for n in changed):
            self._rebuild(table)
            return
        self._protect(writable=True)
        for n in changed:
            row = table.rows[n]
            self.allocatable[n] = table.facts[n].allocatable
            self.free[n] = row.free
            if width:
                self.device_free[n] = row.devices + [0] * (width - len(row.devices))
        self._protect(writable=False)

    def _protect(self, *, writable: bool) -> None:
        for array in (self.allocatable, self.free, self.device_free):
            array.setflags(write=writable)


class Described:
    """By node: its cluster's number, whether it is removed, open, has taints, and its devices. Not to be changed."""

    def __init__(self) -> None:
        self.clusters: Int64Array = np.zeros(0, np.int64)
        self.removed: BoolArray = np.zeros(0, np.bool_)
        self.open: BoolArray = self.removed  # ready, not cordoned, not removed
        self.has_taints: BoolArray = self.removed
        self.device_columns: Int64Array = self.clusters  # -1: no devices
        self.devices: Int64Array = self.clusters
        self._whole: Int32Array | None = None
        self._cursor = -1

    def synced(self, table: NodeTable) -> Described:
        end = table.spec_changes.end
        if self._cursor == end:
            return self
        changed = table.spec_changes.since(self._cursor)
        if changed is None or len(table) != len(self.clusters) or len(changed) * REBUILD_SHARE > len(table):
            facts = table.facts
            self.clusters = np.array([f.cluster for f in facts], np.int64)
            self.removed = np.array([f.removed for f in facts], np.bool_)
            self.open = np.array([f.open for f in facts], np.bool_)
            self.has_taints = np.array([bool(f.spec.taints) for f in facts], np.bool_)
            self.device_columns = np.array([f.device_column for f in facts], np.int64)
            self.devices = np.array([f.devices for f in facts], np.int64)
        else:
            for n in changed:
                f = table.facts[n]
                self.clusters[n], self.removed[n], self.open[n] = f.cluster, f.removed, f.open
                self.has_taints[n], self.device_columns[n] = bool(f.spec.taints), f.device_column
                self.devices[n] = f.devices
        self._whole = None
        self._cursor = end
        return self

    @property
    def whole_devices(self) -> Int32Array:
        """[node, device]: thousandths of each device of a node where nothing runs."""
        if self._whole is None:
            width = int(self.devices.max(initial=0))
            there = np.arange(width)[None, :] < self.devices[:, None]
            self._whole = there.astype(np.int32) * np.int32(DEVICE_MILLIS)
        return self._whole
