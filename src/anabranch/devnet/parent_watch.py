"""Runs a program that must not outlive the process that started it.

    python -I -S parent_watch.py PARENT PROGRAM ARGUMENT…

PARENT is the process id of the caller. This process requests a SIGKILL from the kernel for the case
that its parent dies (PR_SET_PDEATHSIG), then replaces itself with the program; the request survives
the exec.

Rules

1. If the parent dies before the request, nothing is started.
2. For the kernel, the parent is a thread: call this from a thread that lives as long as the program
   should.
3. This file is run directly and uses only the standard library, so that it costs milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the parent process has already exited; nothing was started")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
