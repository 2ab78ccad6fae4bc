"""Becomes another program after asking the kernel to kill it when the parent dies (PR_SET_PDEATHSIG).

    python -I -S launch.py <pid of the parent> <program> <arguments ...>

A program of its own and not a `preexec_fn`: that one would run in a fork of `muster up`, and a fork of a process whose
gRPC threads are at work may crash before it becomes anything. Only Linux has the mechanism; elsewhere it just becomes
the program. Imports nothing of Muster, so that it costs a few milliseconds.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NO_PROGRAM = 127  # as shells say it


def main() -> None:
    parent, argv = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was asked
            sys.exit(1)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]}: {error.strerror}\n")
        sys.exit(NO_PROGRAM)


if __name__ == "__main__":
    main()
