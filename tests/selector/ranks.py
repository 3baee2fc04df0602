"""A pod of many ranks for the tests: `python -m tests.selector.ranks COUNT` forks that many, as an engine does.

Each rank selects among ten sources once and makes one attempt, says `ready PID` and waits. A line `again PID` on
standard input makes that rank do it once more and say `again PID`; the end of input ends all.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import NoReturn

from mx_selector import Target, select_from
from mx_wire import SourceIdentity, SourceInstanceRef

ROWS = [SourceInstanceRef(mx_source_id="s", worker_id=f"w{i}", source_load=i / 10) for i in range(10)]


def work(name: str) -> None:
    selection = select_from(ROWS, SourceIdentity(), Target("m", name), policy="headroom")
    with selection.attempt(selection[0]):
        pass


def rank(number: int, commands: int) -> NoReturn:
    def again(*_: object) -> None:
        work(f"again{number}")
        say("again")

    signal.signal(signal.SIGUSR1, again)
    work(f"t{number}")
    say("ready")
    while not select.select([commands], [], [], 60)[0]:
        pass
    os._exit(0)


def say(word: str) -> None:
    os.write(1, f"{word} {os.getpid()}\n".encode())


def main() -> None:
    read_end, write_end = os.pipe()
    for number in range(int(sys.argv[1])):
        if os.fork() == 0:
            os.close(write_end)
            rank(number, read_end)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the killed are not waited for
    for line in sys.stdin:
        os.kill(int(line.split()[1]), signal.SIGUSR1)


if __name__ == "__main__":
    main()
