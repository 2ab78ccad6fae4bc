"""Values out of other systems' files: documents, mappings, lists, words, numbers, and which settings there are.

Files come from other systems and from hands, so every value is read by a function here that refuses it in one sentence
with its place. Each system has a table of all settings it knows: what is carried over is None there, what has no
counterpart is `Lost` and says why. `settings` walks a definition beside its table and names, by path, whatever is lost,
and whatever is no setting at all, with the nearest that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NoReturn, TypeVar, Union

import yaml

from muster.cli.errors import CliError, Exit, nearest

EMPTY: Final[tuple[Any, ...]] = (None, {}, [], "")
NUMBER: Final = re.compile(r"(?:(\d+)(?:\.(\d*))?|\.(\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,3}))?", re.ASCII)
NUMBER_CHARS_MAX: Final = 64
SUFFIXES: Final = {f"{letter}i": Fraction(1 << 10 * at) for at, letter in enumerate("KMGTPE", 1)} | {
    letter: Fraction(1000) ** power for letter, power in zip("numkMGTPE", (-3, -2, -1, 1, 2, 3, 4, 5, 6), strict=True)
}

T = TypeVar("T")


@dataclass(frozen=True)
class Lost:
    """A setting that nothing is made of. It is told as a whole; inside it only what is no setting is named."""

    why: str = ""
    usual: tuple[Any, ...] = ()  # values that need no telling: they ask for what happens here anyway
    inner: Fields | Each | None = None


@dataclass(frozen=True)
class Each:
    """A list of mappings."""

    fields: Fields


Known = Union[None, Lost, Each, "Fields"]
Fields = Mapping[str, Known]
Tell = Callable[[str], None]


def settings(tell: Tell, given: Mapping[str, Any], fields: Fields, path: str = "", *, told: bool = False) -> None:
    """Tell of every setting that is lost or unknown, by its path. `told`: all of this is lost, and that was said."""
    for key, value in given.items():
        name = f"{path}.{key}" if path else str(key)
        if key not in fields:
            tell(f"{name} is no setting that is known{nearest(str(key), fields)} and is left out")
            continue
        known = fields[key]
        if value in EMPTY or known is None:
            continue
        if isinstance(known, Lost):
            if not told and value not in known.usual:
                tell(f"{name} has no counterpart and is left out{f': {known.why}' if known.why else ''}")
            _inside(tell, value, known.inner, name, told=True)
        else:
            _inside(tell, value, known, name, told=told)


def _inside(tell: Tell, value: Any, known: Fields | Each | None, path: str, *, told: bool) -> None:
    if isinstance(known, Each):
        for at, item in enumerate(entries(value, path)):
            settings(tell, item, known.fields, f"{path}[{at}]", told=told)
    elif known is not None:
        settings(tell, section(value, path), known, path, told=told)


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is there twice is a mistake: only one of the two values would count."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f'"{key.value}" is there twice', problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def documents(text: str, source: str) -> list[dict[str, Any]]:
    """The mappings of a YAML text; a Kubernetes List is opened. Raises CliError."""
    try:
        found = list(yaml.load_all(text, _Loader))
    except yaml.YAMLError as error:
        raise CliError(f"{source} is not YAML: {error}", Exit.USAGE) from None
    opened: list[dict[str, Any]] = []
    for at, document in enumerate(found, 1):
        if document is None:
            continue
        if not isinstance(document, dict):
            fail(source, f"document {at} must be a mapping, not {document!r:.60}")
        items = entries(document["items"], f"{source}: items") if "items" in document else [document]
        opened += [dict(item) for item in items]
    return opened


def fail(where: str, message: str) -> NoReturn:
    raise CliError(f"{where}: {message}", Exit.USAGE)


def section(value: Any, where: str) -> Mapping[str, Any]:
    """A mapping, also when it is absent."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        fail(where, f"must be a mapping, not {value!r}")
    return value


def entries(value: Any, where: str) -> list[Mapping[str, Any]]:
    """A list of mappings, also when it is absent."""
    if value is None:
        return []
    if not isinstance(value, list):
        fail(where, f"must be a list, not {value!r}")
    return [section(item, f"{where}[{at}]") for at, item in enumerate(value)]


def words(value: Any, where: str) -> list[str]:
    """A list of words, also when it is absent."""
    if value is None:
        return []
    if not isinstance(value, list):
        fail(where, f"must be a list, not {value!r}")
    return [str(word) for word in value]


def whole(value: Any, where: str, bounds: tuple[int, int]) -> int:
    """A whole number."""
    try:
        number = int(str(value))
    except ValueError:
        fail(where, f"must be a whole number, not {value!r}")
    if not bounds[0] <= number <= bounds[1]:
        fail(where, f"{number} is not between {bounds[0]} and {bounds[1]}")
    return number


def fraction(value: Any, where: str) -> Fraction:
    """A Kubernetes quantity from 0 on, exactly."""
    text = str(value)
    match = NUMBER.fullmatch(text) if len(text) <= NUMBER_CHARS_MAX else None
    if match is None:
        fail(where, f"{text[:NUMBER_CHARS_MAX]!r} is not a number from 0 on")
    digits, decimals = match[1] or "", match[2] or match[3] or ""
    number = Fraction(int(digits + decimals), 10 ** len(decimals))
    return number * SUFFIXES.get(match[4], 1) * Fraction(10) ** int(match[5] or 0)


def one_of(known: Mapping[str, T], value: Any, where: str) -> T:
    """What a word stands for."""
    if not isinstance(value, str) or value not in known:
        fail(where, f"must be one of {', '.join(known)}, not {value!r}{nearest(str(value), known)}")
    return known[value]


def name_of(document: Mapping[str, Any], source: str) -> str:
    name = section(document.get("metadata"), f"{source}: metadata").get("name")
    if not name:
        raise CliError(f"{source}: a {document.get('kind', 'document')} has no metadata.name", Exit.USAGE)
    return str(name)


def spec_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    named = section(document.get("metadata"), "metadata").get("name")
    return section(document.get("spec"), f"{document.get('kind')} {named}: spec")
