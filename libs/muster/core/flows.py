"""What leaves ask for, as divisible things, and the queues they are in: the parts of a `flow_tree.Tree` (rule F3).

    demand of a leaf by resource set  ->  Flow

A `Flow` is what one leaf asks for with one set of resources (F3): a queue with GPU jobs and CPU-only jobs is two flows,
so an exhausted GPU stops only the first. *Shares* are fractions of a resource's capacity. A flow is raised along its
`direction`, its demand scaled to dominant share 1, so how far it has come is one number, its `share`, from 0 to `full`.

Which resource of a flow is dominant is decided by multiplying crosswise. For many flows at once, ratios in floating
point find it first; they are right to RATIO_BITS, and where two are not further apart, the integers decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from math import gcd
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from muster.core.exact import ONE, ZERO, Exact
from muster.core.model import Amounts
from muster.core.parts import SCALE_BITS

if TYPE_CHECKING:
    from muster.core.bounded_record import Level

FlowDemand = Sequence[Amounts]  # of one leaf: one for each set of requested resources
Main = tuple[int, int]  # amount and capacity of a resource of which a flow asks for the largest share


class Kind(NamedTuple):
    """A set of resources."""

    resources: tuple[int, ...]
    needs: int  # a bit for each


NOTHING: Final[Mapping[int, int]] = {}
NO_LIMITS: Final[Mapping[int, Exact]] = {}
RATIO_BITS: Final = 48  # two conversions and a division are wrong by less than 3 * 2^-53 of the result


class Flow:
    """The jobs of a leaf that ask for the same resources, as one divisible thing."""

    __slots__ = (
        "_capacity",
        "_direction",
        "_full",
        "_share",
        "_share_at",
        "amounts",
        "dominant",
        "is_gone",
        "is_open",
        "level",
        "main",
        "needs",
        "place",
        "resources",
        "scale",
        "weight",
    )

    def __init__(self, kind: Kind, amounts: Sequence[int], capacity: Sequence[int], main: Main, dominant: int) -> None:
        self.resources, self.needs = kind
        self.amounts = amounts  # of all resources: zero where it is not of this kind
        self.main = main
        self.dominant = dominant  # a bit for each resource that has the largest share
        self._capacity = capacity
        self._full: Exact | None = None
        self._direction: dict[int, Exact] | None = None
        self._share: Exact = ZERO
        self._share_at: Exact | None = None  # the level it was worked out for
        self.level: Level | None = None  # where it was stopped, if it was
        self.weight = 0  # of what is raised to this level
        self.scale = 0  # what its part of the demand grows by with the level, SCALE_BITS up, rounded down
        self.place = 0  # its number in `columns`
        self.is_open = False  # whether the present filling may raise it
        self.is_gone = False  # replaced by another

    @property
    def full(self) -> Exact:
        """The dominant share of the whole demand."""
        if self._full is None:
            self._full = Exact(*self.main)
        return self._full

    @property
    def share(self) -> Exact:
        """How far it has come."""
        if self.level is not None and self._share_at is not self.level.exact():
            self._share, self._share_at = self.level.raised(self.weight), self.level.exact()
        return self._share

    @share.setter
    def share(self, share: Exact) -> None:
        self._share, self._share_at, self.level = share, None, None

    def saved(self) -> tuple[Exact, Exact | None, Level | None, bool]:
        """Where it is, for `restore`."""
        return self._share, self._share_at, self.level, self.is_open

    def restore(self, saved: tuple[Exact, Exact | None, Level | None, bool]) -> None:
        self._share, self._share_at, self.level, self.is_open = saved

    def weigh(self, weight: int) -> None:
        """From now on, where it is stopped at a level it has come to weight * level."""
        if weight != self.weight:
            if self.level is not None:
                self.share = self.share
            most, below = self.main
            self.weight, self.scale = weight, (weight * below << SCALE_BITS) // most

    @property
    def kind(self) -> tuple[int, ...]:
        """The direction as the smallest integers."""
        common = gcd(*self.amounts)
        return tuple([amount // common for amount in self.amounts])

    @property
    def direction(self) -> dict[int, Exact]:
        """The demand scaled to dominant share 1, by resource."""
        if self._direction is None:
            most, below = self.main
            amounts, capacity = self.amounts, self._capacity
            self._direction = {
                r: ONE if self.dominant >> r & 1 else Exact(amounts[r] * below, most * capacity[r])
                for r in self.resources
            }
        return self._direction


class Node:
    """A queue of the tree; the one above all roots has the id ""."""

    __slots__ = (
        "_demand",
        "_resources",
        "begin",
        "below",
        "children",
        "depth",
        "end",
        "flows",
        "guaranteed",
        "id",
        "lending",
        "limit",
        "parent",
        "place",
        "pressing",
        "weight",
    )

    flows: list[Flow]  # its own: of a leaf
    below: list[Flow]  # of the whole subtree, depth first
    begin: int  # these, among all flows of the tree
    end: int
    place: int  # its number in `columns`

    def __init__(self, queue: str, weight: int, parent: Node | None, resources: int) -> None:
        self.id = queue
        self.weight = weight
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.children: list[Node] = []  # by name
        self.guaranteed: Mapping[int, int] = NOTHING  # > 0
        self.limit: Mapping[int, int] = NOTHING
        self.lending: Mapping[int, int] = NOTHING
        self.pressing: Mapping[int, Exact] = NO_LIMITS  # those that are below the demand, as shares
        self._demand: list[int] | None = None
        self._resources = resources  # how many there are

    @property
    def demand(self) -> list[int]:
        """Of all flows below, by resource."""
        if self._demand is None:
            self._demand = self.asked_by(self.below)
        return self._demand

    @demand.setter
    def demand(self, demand: list[int] | None) -> None:
        """None: to be found out when somebody asks."""
        self._demand = demand

    def asked_by(self, flows: Iterable[Flow]) -> list[int]:
        """By resource."""
        amounts = [flow.amounts for flow in flows]
        return list(map(sum, zip(*amounts, strict=True))) if amounts else [0] * self._resources

    def below_needing(self, resource: int) -> list[Flow]:
        return [flow for flow in self.below if flow.needs >> resource & 1]

    def path(self) -> Iterator[Node]:
        """From here up to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[Node]:
        """Itself and what is below."""
        yield self
        for child in self.children:
            yield from child.subtree()


def kind_of(needs: int) -> Kind:
    return Kind(tuple([r for r in range(needs.bit_length()) if needs >> r & 1]), needs)


def flow_of(kind: Kind, amounts: Sequence[int], capacity: Sequence[int]) -> Flow:
    """What asks for so much of each resource."""
    return Flow(kind, amounts, capacity, *_largest(kind.resources, amounts, capacity))


def flows_of(kinds: Sequence[Kind], amounts: npt.NDArray[Any], capacity: Sequence[int]) -> list[Flow]:
    """The same of many. `amounts` has a row for each resource, a column for each flow."""
    asked = amounts.T.tolist()
    if not asked or amounts.dtype == object:
        return [flow_of(kind, one, capacity) for kind, one in zip(kinds, asked, strict=True)]
    ratios = amounts / np.array(capacity, dtype=np.float64)[:, None]
    are_close = ratios >= ratios.max(axis=0) * (1 - 0.5**RATIO_BITS)
    rows = are_close.argmax(axis=0)
    most = amounts[rows, np.arange(len(asked))].tolist()
    mains = list(zip(most, [capacity[r] for r in rows.tolist()], strict=True))
    dominant = [1 << r for r in rows.tolist()]
    several = np.flatnonzero(are_close.sum(axis=0) > 1)
    for place, close in zip(several.tolist(), are_close.T[several].tolist(), strict=True):
        resources = [r for r in kinds[place].resources if close[r]]
        mains[place], dominant[place] = _largest(resources, asked[place], capacity)
    return list(map(Flow, kinds, asked, repeat(capacity), mains, dominant))


def _largest(resources: Iterable[int], amounts: Sequence[int], capacity: Sequence[int]) -> tuple[Main, int]:
    """The largest share, and a bit for each resource that has it."""
    most, below, dominant = 0, 1, 0
    for r in resources:
        amount, size = amounts[r], capacity[r]
        this, other = amount * below, most * size
        if this > other:
            most, below, dominant = amount, size, 1 << r
        elif this == other:
            dominant |= 1 << r
    return (most, below), dominant
