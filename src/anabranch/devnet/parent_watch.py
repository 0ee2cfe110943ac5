"""Runs a program that must not outlive whoever started it.

    python -I -S parent_watch.py PARENT PROGRAM ARGUMENT…

PARENT is the process id of whoever starts this. The kernel is asked to kill this process when that
one dies, however it dies; then the program takes this process over, and the request stays. Rules:

1. The parent may be dead before the kernel was asked. Then nothing is started.
2. The kernel's parent is a thread: whoever starts this does so from a thread that lives as long as
   the program is wanted.
3. This is run as a file, with nothing but the standard library, so that it costs milliseconds.

It keeps no state.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel, then become the program."""
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("whoever wanted this program is gone already; nothing was started")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
