"""Every command line that the documentation shows is one that the real command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from muster.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = [path for pattern in ("*.md", "docs/*.md", "docs/adr/*.md", "deploy/**/*.md", "services/*/README.md")
         for path in sorted(ROOT.glob(pattern))]  # fmt: skip
EXAMPLES = sorted((ROOT / "docs/examples").glob("*.yaml"))
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(?:\$ |#\s+)?(muster [^\n]*)", re.MULTILINE)
INLINE = re.compile(r"`(muster [^`\n]+)`")
END = ("|", "||", "&&", "&", ";", ">", ">>", "<")


def words(line: str) -> list[str]:
    """Of one command, up to what the shell does with it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    found = list(lexer)
    return found[: next((at for at, word in enumerate(found) if word in END), len(found))]


def command_of(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command that is meant, and what is left for it."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        assert arguments[0] in command.commands, f"there is no command {arguments[0]}"
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return command, arguments


def shown() -> list[Any]:
    found = [
        (path, line)
        for path in PAGES
        for block in FENCE.findall(path.read_text(encoding="utf-8"))
        for line in LINE.findall(block)
    ]
    found += [(path, line) for path in EXAMPLES for line in LINE.findall(path.read_text(encoding="utf-8"))]
    return [pytest.param(line, id=f"{path.relative_to(ROOT)}: {line[:50]}") for path, line in found]


def mentioned() -> list[Any]:
    found = [(path, line) for path in PAGES for line in INLINE.findall(FENCE.sub("", path.read_text("utf-8")))]
    return [pytest.param(line, id=f"{path.relative_to(ROOT)}: {line[:50]}") for path, line in found]


@pytest.mark.parametrize("line", shown())
def test_a_command_that_is_shown_is_taken(line: str) -> None:
    command, arguments = command_of(words(line)[1:])
    with command.make_context("muster", arguments):
        pass


@pytest.mark.parametrize("line", mentioned())
def test_the_options_that_are_mentioned_exist(line: str) -> None:
    command, arguments = command_of([word for word in line.split()[1:] if word != "..."])
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in arguments:
        if word.startswith("-") and word != "-":
            for option in word.split("=")[0].split("/"):
                assert option in known | {"-h", "--help"}


def test_there_is_something_to_check() -> None:
    assert len(shown()) > 15
    assert len(mentioned()) > 15


def commands(command: Any, name: str = "muster") -> list[tuple[str, Any]]:
    if hasattr(command, "commands"):
        return [each for sub, below in command.commands.items() for each in commands(below, f"{name} {sub}")]
    return [(name, command)]


def test_the_readme_names_the_commands_that_print_in_one_way_only() -> None:
    every = commands(typer.main.get_command(app))
    without = {name.removeprefix("muster ") for name, each in every if not any("-o" in p.opts for p in each.params)}
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    (listed,) = re.findall(r"Every command but ([^.]*) takes `-o json\|yaml\|wide`", text)
    assert set(re.findall(r"`([^`]+)`", listed)) == without
