"""The search for a broken promise in the model of replicated streams (`life_model`).

    python -m tests.model.life_protocol --copies 3 --confirm 2 --lives 3 --ticks 1
    python -m tests.model.life_protocol --lives 4 --depth 18 --rules lost_acknowledge

Every state that can be reached is visited, breadth first, so the first broken promise comes with a
shortest story that leads to it. The command prints the story, the number of states and the CPU
seconds, and a line of progress per step; its exit code is 1 if a promise is broken. A million
states take about a minute and two gigabytes.

Prior art: TLC, the checker of TLA+ (Yu, Manolios, Lamport 1999).
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.model.life_model import (
    AS_WRITTEN,
    CLOSER,
    GENERATIONS,
    Action,
    BrokenPromiseError,
    Model,
    Rules,
    State,
    World,
    changed_files,
    name_of,
)


class Found(NamedTuple):
    """The result of a search. No problem was found if `problem` is empty."""

    states: int
    depth: int
    #: Whether every state that can be reached was visited.
    complete: bool
    problem: str
    story: tuple[str, ...]


def search(
    world: World,
    depth_max: int = 1000,
    states_max: int = 10_000_000,
    progress: Callable[[int, int], None] | None = None,
    recover_every: int = 0,
) -> Found:
    """Searches breadth first for a state that breaks a claim.

    With `recover_every` one state in so many is also checked for progress.
    """
    model = Model(world)
    first = model.settled(model.initial())
    came_from: dict[State, tuple[State, Action] | None] = {first: None}
    level = [first]
    depth = 0
    while level and depth < depth_max and len(came_from) < states_max:
        deeper: list[State] = []
        for state in level:
            reached = state
            try:
                for action, after in model.steps(state):
                    after = model.settled(after)
                    if after in came_from:
                        continue
                    came_from[after] = state, action
                    deeper.append(after)
                    reached = after
                    model.check(after)
                    if recover_every and len(came_from) % recover_every == 0:
                        model.check_progress(after)
                    reached = state
            except BrokenPromiseError as error:
                story = tell(came_from, reached)
                return Found(len(came_from), depth + 1, False, str(error), story)
        level = deeper
        depth += 1
        if progress:
            progress(depth, len(came_from))
    return Found(len(came_from), depth, not level, "", ())


# ---------------------------------------------------------------------------------------- stories


def tell(came_from: dict[State, tuple[State, Action] | None], state: State) -> tuple[str, ...]:
    """How a state is reached, one line per step."""
    lines: list[str] = []
    while (step := came_from[state]) is not None:
        before, action = step
        lines.append(describe(before, action, state))
        state = before
    return tuple(lines[::-1])


def describe(before: State, action: Action, after: State) -> str:
    """One step in words, with what was confirmed by it."""
    kind, at, number = action
    match kind:
        case "start":
            file = " with the changed network file" if at % 10 else ""
            line = f"{writer_name(at // 10)} starts life {number}{file}"
        case "promise":
            line = f"{name_of(at)} promises life {number}"
        case "begin":
            life = before.processes[at].life
            sites = [site for site in range(len(before.copies)) if number >> site & 1]
            names = " and ".join(name_of(site) for site in sites) or "nobody else"
            begun = after.lives[life]
            assert begun is not None
            members = ", ".join(member_name(member) for member in begun.members)
            line = f"{writer_name(at)} begins life {life} with answers of {names}: "
            line += f"lives {list(begun.log)}, members {members}"
        case "take":
            had, has = before.copies[at].log, after.copies[at].log
            line = f"{name_of(at)} syncs tick {len(has)} of life {number}"
            line += f", cutting off {len(had) - len(has) + 1}" if len(had) >= len(has) else ""
            line += f": lives {list(has)}"
        case "append":
            line = f"the writer of life {at} appends a tick"
        case "repeat":
            line = f"{name_of(at)} takes tick {number + 1} again"
        case "lose":
            line = f"{name_of(at)} loses its disk"
        case "roll back":
            line = f"{name_of(at)} is rolled back: lives {list(after.copies[at].log)}"
        case _:
            line = f"{name_of(at)}: {kind}"
    for life, (was, now) in enumerate(zip(before.lives, after.lives, strict=True)):
        if now is not None and now.confirmed > (was.confirmed if was else 0):
            line += f"; tick {now.confirmed} is confirmed in life {life}"
    return line


def writer_name(process: int) -> str:
    return "the closer" if process == CLOSER else name_of(process)


def member_name(member: int) -> str:
    site, generation = divmod(member, GENERATIONS)
    return name_of(site) + (f" (disk {generation + 1})" if generation else "")


def main() -> int:
    """The command: searches one world, as deep as it is told to."""
    parser = argparse.ArgumentParser(description="Search the states of replicated streams.")
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--confirm", type=int, default=2)
    parser.add_argument("--lives", type=int, default=3)
    parser.add_argument("--ticks", type=int, nargs="+", default=[1], help="per life")
    parser.add_argument("--losses", type=int, default=0, help="disks that may be lost")
    parser.add_argument("--rollbacks", type=int, default=0, help="keepers that may be rolled back")
    parser.add_argument("--single", action="store_true", help="no second process of the origin")
    parser.add_argument("--closer", action="store_true", help="another broker may close the stream")
    parser.add_argument("--cuts", action="store_true", help="origins cut off what is not adopted")
    parser.add_argument("--unfounded", action="store_true", help="begin without a stream")
    parser.add_argument("--change", action="store_true", help="the last keeper may be replaced")
    parser.add_argument("--depth", type=int, default=1000, help="steps from the beginning")
    parser.add_argument("--states", type=int, default=5_000_000, help="states before giving up")
    parser.add_argument("--recover-every", type=int, default=0, help="check progress of one in N")
    parser.add_argument("--rules", default="", help="switches, with commas, or AS_WRITTEN")
    options = parser.parse_args()
    rules = (
        Rules(**{name: True for name in options.rules.split(",") if name})
        if options.rules != "AS_WRITTEN"
        else AS_WRITTEN
    )
    world = World(
        copies=options.copies,
        confirm=options.confirm,
        lives=options.lives,
        ticks=tuple(options.ticks),
        losses=options.losses,
        rollbacks=options.rollbacks,
        second=not options.single,
        closer=options.closer,
        cuts=options.cuts,
        founded=not options.unfounded,
        files=changed_files(options.copies) if options.change else (),
        rules=rules,
    )

    def progress(depth: int, states: int) -> None:
        seconds = time.process_time()
        print(f"depth {depth}: {states:,} states, {seconds:.0f} s", file=sys.stderr, flush=True)

    found = search(world, options.depth, options.states, progress, options.recover_every)
    for number, line in enumerate(found.story, 1):
        print(f"{number:3}. {line}")
    reach = "all states" if found.complete else f"states to depth {found.depth}"
    print(found.problem or f"no promise is broken in {reach}")
    print(f"{found.states:,} states, {time.process_time():.1f} s")
    return 1 if found.problem else 0


if __name__ == "__main__":
    sys.exit(main())
