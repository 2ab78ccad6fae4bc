"""Exact numbers that are cheap as long as nobody asks closely.

Entitlements are fractions whose numerators grow to thousands of digits when many kinds of jobs share. Hardly any of
those digits ever decides anything. An `Exact` is known at once to about PRECISION_BITS (a middle and a bound on its
error, both integers) and knows how to find out the rest: from the two numbers it was made of, or from a function. A
comparison looks at the bounds; only when they overlap is the fraction itself worked out, and only of the numbers it
depends on. So every comparison is right, and almost all are cheap.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from typing import Final

PRECISION_BITS: Final = 192
UNIT: Final = 1 << PRECISION_BITS  # the middle of 1

NO_SYMBOL: Final = -1
ALL_SYMBOLS: Final = 1 << 30  # a depth that none has

Work = Callable[[Fraction, Fraction], Fraction]
Form = tuple[Fraction, dict[Hashable, Fraction]]  # a constant, and how much of each symbol
Source = Callable[[], "Exact"]


class Exact:
    """An immutable rational number. `error` is in units of the last place of `middle`."""

    __slots__ = ("_form", "_ratio", "_value", "error", "middle")

    # Of a number that is known from the beginning; `_Made` and `_Bounded` have their own.
    is_open: bool = False  # whether it depends on what has a source
    mark: Hashable = None
    depth: int = NO_SYMBOL
    _work: Work = operator.add
    _left: Exact | None = None
    _right: Exact | None = None

    def __init__(self, numerator: int, denominator: int = 1) -> None:
        """A ratio of integers, the lower one above zero."""
        self.middle = (numerator << PRECISION_BITS) // denominator
        self.error = 0 if denominator == 1 else 1
        self._ratio: tuple[int, int] | None = (numerator, denominator)
        self._value: Fraction | None = None
        self._form: Form | None = None

    @staticmethod
    def of(value: Fraction) -> Exact:
        return Exact(value.numerator, value.denominator)

    @staticmethod
    def bounded(middle: int, error: int, source: Source, mark: Hashable = None) -> Exact:
        """A number known to be `middle` give or take `error`; `source` finds it out. Equal marks mean equal numbers."""
        return _Bounded((middle, error), (source, None), NO_SYMBOL, mark)

    @staticmethod
    def symbol(bounds: tuple[int, int], sources: tuple[Source, Source], depth: int, mark: Hashable) -> Exact:
        """The same, and one that others may be compared without: see `order`. The mark is its name.

        The first source may give a number made of other symbols, the second one finds out everything at once.
        """
        return _Bounded(bounds, sources, depth, mark)

    @property
    def is_known(self) -> bool:
        """Whether its value is at hand."""
        return self._value is not None or self._ratio is not None

    @property
    def ratio(self) -> tuple[int, int] | None:
        """Numerator and denominator, if the value is at hand."""
        return self._ratio if self._value is None else self._value.as_integer_ratio()

    def __add__(self, other: Exact) -> Exact:
        return _Made(operator.add, self, other, self.middle + other.middle, self.error + other.error)

    def __sub__(self, other: Exact) -> Exact:
        return _Made(operator.sub, self, other, self.middle - other.middle, self.error + other.error)

    def __mul__(self, other: Exact) -> Exact:
        a, b, error_a, error_b = self.middle, other.middle, self.error, other.error
        error = ((abs(a) * error_b + abs(b) * error_a + error_a * error_b) >> PRECISION_BITS) + 2
        return _Made(operator.mul, self, other, (a * b) >> PRECISION_BITS, error)

    def __truediv__(self, other: Exact) -> Exact:
        """By a number above zero."""
        a, b, error_b = self.middle, other.middle, other.error
        least = b - error_b
        if least <= 0:  # too close to zero for bounds
            return Exact.of(self.value() / other.value())
        middle = (a << PRECISION_BITS) // b
        # |a/b - a'/b'| <= (|a' - a| + |a/b| * |b' - b|) / b'
        error = ((self.error << PRECISION_BITS) + (abs(middle) + 1) * error_b) // least + 2
        return _Made(operator.truediv, self, other, middle, error)

    def __lt__(self, other: Exact) -> bool:
        return self.compare(other) < 0

    def __le__(self, other: Exact) -> bool:
        return self.compare(other) <= 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exact) and self.compare(other) == 0

    __hash__ = None  # type: ignore[assignment]  # equal numbers may look different until worked out

    def __repr__(self) -> str:
        return f"Exact({self.middle / UNIT:.6g})"

    def compare(self, other: Exact) -> int:
        """-1, 0 or 1."""
        apart = self.middle - other.middle
        error = self.error + other.error
        if apart > error:
            return 1
        if apart < -error:
            return -1
        if _same(self, other):
            return 0
        if self.is_open or other.is_open:
            known = _without_symbols(self, other, _AllForms(ALL_SYMBOLS))
            if known is not None:
                return known
        difference = self.value() - other.value()
        return (difference > 0) - (difference < 0)

    def value(self) -> Fraction:
        """The number itself."""
        todo = [self]
        while self._value is None:
            number = todo[-1]
            if number._value is not None:
                todo.pop()
            elif number._ratio is not None:
                number._value = Fraction(*number._ratio)
                todo.pop()
            elif isinstance(number, _Bounded) and number._source is not None:
                number.find_out(number._whole or number._source)
            else:
                assert isinstance(number, _Made)
                left, right = number._left, number._right
                assert left is not None
                assert right is not None
                if left._value is None:
                    todo.append(left)
                elif right._value is None:
                    todo.append(right)
                else:
                    number._value = number._work(left._value, right._value)
                    number._left = number._right = None
                    todo.pop()
        return self._value

    def floor(self) -> int:
        """The greatest integer that is not above it."""
        low = (self.middle - self.error) >> PRECISION_BITS
        if low == (self.middle + self.error) >> PRECISION_BITS:
            return low
        value = self.value()
        return value.numerator // value.denominator


def greatest(numbers: Iterable[Exact]) -> Exact:
    """The greatest of some; if several may be, which of them is not decided before it matters."""
    best: Exact | None = None
    for number in numbers:
        if best is None:
            best = number
            continue
        apart = number.middle - best.middle
        error = number.error + best.error
        if apart > error:
            best = number
        elif apart >= -error and number is not best:
            best = _Made(max, best, number, best.middle, abs(apart) + max(number.error, best.error))
    assert best is not None
    return best


def _same(a: Exact, b: Exact, steps: int = 3) -> bool:
    """Whether they are the same by the way they were made, seen a few steps deep. False says nothing."""
    if a is b or (a.mark is not None and a.mark == b.mark):
        return True
    if a.is_known and b.is_known:
        return a.value() == b.value()
    if not steps or a._left is None or b._left is None or a._right is None or b._right is None:
        return False
    return a._work is b._work and _same(a._left, b._left, steps - 1) and _same(a._right, b._right, steps - 1)


def order(a: Exact, b: Exact, depth: int) -> int:
    """As `a.compare(b)`, tried first without finding out symbols of this depth and above.

    What is left of them when the numbers are subtracted may be nothing, and they are the most work.
    """
    apart, error = a.middle - b.middle, a.error + b.error
    if -error <= apart <= error and not _same(a, b):
        known = _without_symbols(a, b, _Forms(depth))
        if known is not None:
            return known
    return a.compare(b)


def _without_symbols(a: Exact, b: Exact, forms: _Forms) -> int | None:
    constant_a, symbols_a = forms.of(a)
    constant_b, symbols_b = forms.of(b)
    return (constant_a > constant_b) - (constant_a < constant_b) if symbols_a == symbols_b else None


class _Forms:
    """Numbers as a constant and multiples of symbols of some depth and above."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._forms: dict[int, tuple[Exact, Form]] = {}  # by identity, which is theirs as long as they are kept here

    def of(self, number: Exact) -> Form:
        todo = [number]
        while self._known(number) is None:
            last = todo[-1]
            if self._known(last) is not None:
                todo.pop()
            elif not last.is_open or last.is_known:
                self._keep(last, (last.value(), {}))
            elif 0 <= last.depth <= self._depth:
                self._keep(last, (NOTHING, {last.mark: Fraction(1)}))
            elif isinstance(last, _Bounded) and last._source is not None:
                last.find_out(last._source)
            else:
                left, right = last._left, last._right
                assert left is not None
                assert right is not None
                of_left, of_right = self._known(left), self._known(right)
                if of_left is None:
                    todo.append(left)
                if of_right is None:
                    todo.append(right)
                if of_left is not None and of_right is not None:
                    self._keep(last, _worked(last._work, of_left, of_right))
        form = self._known(number)
        assert form is not None
        return form

    def _known(self, number: Exact) -> Form | None:
        kept = self._forms.get(id(number))
        return kept[1] if kept is not None else None

    def _keep(self, number: Exact, form: Form) -> None:
        self._forms[id(number)] = (number, form)


class _AllForms(_Forms):
    """Numbers as multiples of all symbols; remembered by the numbers themselves."""

    def _known(self, number: Exact) -> Form | None:
        return number._form

    def _keep(self, number: Exact, form: Form) -> None:
        number._form = form


def _worked(work: Work, left: Form, right: Form) -> Form:
    (a, of_a), (b, of_b) = left, right
    if not of_a and not of_b:
        return work(a, b), {}
    if work is operator.add or work is operator.sub:
        sums = dict(of_a)
        for symbol, factor in of_b.items():
            sums[symbol] = work(sums.get(symbol, NOTHING), factor)
        return work(a, b), {symbol: factor for symbol, factor in sums.items() if factor}
    if not of_b and work in (operator.mul, operator.truediv):
        return work(a, b), {symbol: work(factor, b) for symbol, factor in of_a.items() if b}
    if not of_a and work is operator.mul:
        return a * b, {symbol: a * factor for symbol, factor in of_b.items() if a}
    return NOTHING, {object(): Fraction(1)}  # it stands for itself


class _Made(Exact):
    """A number made of two others."""

    __slots__ = ("_left", "_right", "_work", "is_open")

    def __init__(self, work: Work, left: Exact, right: Exact, middle: int, error: int) -> None:
        self.middle = middle
        self.error = error
        self.is_open = left.is_open or right.is_open
        self._work = work
        self._left: Exact | None = left
        self._right: Exact | None = right
        self._value = self._ratio = self._form = None


class _Bounded(_Made):
    """A number with a source: what the source has found, once it was asked."""

    __slots__ = ("_source", "_whole", "depth", "mark")

    def __init__(
        self, bounds: tuple[int, int], sources: tuple[Source, Source | None], depth: int, mark: Hashable
    ) -> None:
        super().__init__(operator.add, ZERO, ZERO, *bounds)
        self._left = self._right = None  # nothing is found out yet
        self._source: Source | None = sources[0]
        self._whole = sources[1]
        self.depth = depth
        self.is_open = True
        self.mark = mark

    def find_out(self, source: Source) -> None:
        """Be what the source finds."""
        self._left, self._right, self._source = source(), ZERO, None


NOTHING: Final = Fraction(0)
ZERO: Final = Exact(0)
ONE: Final = Exact(1)
