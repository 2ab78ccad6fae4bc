"""The `muster` command: its commands, and the one place where errors become a sentence and an exit code.

Commands are declared in `commands_*` modules that import only typer; what they do is imported when they run, so that
`muster --help` answers at once and `muster list` does not load what `muster up` needs.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from muster.cli import commands_classes, commands_jobs, commands_queue, commands_run, commands_shares, commands_watch
from muster.cli.errors import EXIT_CODES_HELP, CliError, Exit

app = typer.Typer(
    name="muster",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Queue, place and watch jobs on Kubernetes clusters.",
    epilog=EXIT_CODES_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"muster {version('muster-scheduler')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Queue, place and watch jobs on Kubernetes clusters."""


commands_run.add_to(app)
commands_jobs.add_to(app)
commands_watch.add_to(app)
commands_shares.add_to(app)
app.add_typer(commands_queue.app, name="queue")
app.add_typer(commands_classes.app, name="priority-class")


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code. Nothing but bugs shows a stack trace."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `muster list | head`
        return _nobody_reads()
    return code


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name="muster", standalone_mode=True)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer takes it for a failure
            raise ended.__context__ from None
        return ended.code if isinstance(ended.code, int) else Exit.OK if ended.code is None else Exit.USAGE
    except CliError as error:
        return _complain(error)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return Exit.INTERRUPTED
    except Exception as error:
        if os.environ.get("MUSTER_DEBUG"):
            raise
        print(f"muster: a bug: {type(error).__name__}: {error} (MUSTER_DEBUG=1 shows where)", file=sys.stderr)
        return Exit.BUG
    return code if isinstance(code, int) else Exit.OK


def _nobody_reads() -> int:
    """End quietly, also when the interpreter writes what is left in its buffers."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ else 1)
    os.close(nowhere)
    return Exit.OK


def _complain(error: CliError) -> int:
    print(f"muster: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"  {error.hint}", file=sys.stderr)
    return error.code


if __name__ == "__main__":
    main()
