"""Scenario files: a network of real routers, moved by hand, and the full trace of what it does.

A file is text: remarks (`#`), commands, a line `----`, and what the commands must print, up to an
empty line. Nothing happens that no command asks for: frames wait on their links until they are
delivered, and a broker's timers run only when it is told to propagate or everybody waits. So a
file tells a story step by step, and the test holds it to the letter. Where several commands stand
together, each is repeated before what it does (`>`).

    network                        followed by lines `site NAME BROKER…`, `edge BROKER…` and
                                   `join SITE SITE…` (the first with each of the others)
    subscribe EDGE NAME FILTER     unsubscribe NAME
    propagate EDGE…                tell what changed
    deliver FROM TO                the next frame of a link; `deliver all`: all there are
    publish EDGE NAME=VALUE…       mark EDGE: put the newest vector into the stream
    full FROM TO / free FROM TO    a link takes no more, or takes again
    break ONE OTHER / mend ONE OTHER    a link goes, with what is on it; and comes back
    crash BROKER / restart BROKER
    wait SECONDS BROKER…           the timers of these brokers run
    show BROKER                    vectors, Λ per direction, DAG; at an edge its own clock too
    quietly COMMAND                the same without its trace

`scenario_words` says how frames and states are written.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from anabranch.core.contract import Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import Arrival, Outcome, VectorAdvance
from anabranch.core.routing.tree.presence import Presence
from anabranch.model.encoding import decode_event, encode_event
from anabranch.model.event import Event, EventId, Value
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import InterestChange, InterestState, Knowledge
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version, is_at_least
from tests import scenario_words as words
from tests.routing_parts import Subscribed, World

#: Nobody asks for what is only late, unless a scenario waits that long.
PATIENT = Options(interest_after_s=0.01, silence_after_s=0.01, lag_after_s=10.0)
RULE = "----"


class Stage(World):
    """A world that does nothing by itself and writes down all it does."""

    def __init__(self, network: Network) -> None:
        self.trace: list[str] = []
        #: (subscription, stream) → its first tick.
        self.starts: dict[tuple[str, str], int] = {}
        super().__init__(network, seed=0, options=PATIENT)
        self.deliver_quietly()

    def deliver_quietly(self) -> None:
        """Every new link begins with questions; nobody knows an answer yet."""
        self.cmd_deliver("all")
        self.trace.clear()

    def say(self, line: str) -> None:
        self.trace.append(line)

    # -- what brokers do --------------------------------------------------------------------------

    def do(self, name: str, outcomes: Iterable[Outcome]) -> None:
        outcomes = list(outcomes)
        for outcome in outcomes:
            if isinstance(outcome, Send) and (name, outcome.peer) in self.links:
                self.say(f"  {name} → {outcome.peer}: {words.frame(outcome.frame)}")
            elif isinstance(outcome, VectorAdvance):
                self.say(f"  {name} wants a mark with {words.vector(outcome.vector)}")
            elif isinstance(outcome, Arrival):
                self.arrive(name, outcome)
        super().do(name, outcomes)

    def arrive(self, edge: str, arrival: Arrival) -> None:
        """A toy edge: who starts here, and who gets the event."""
        here = [each for each in self.subscriptions if each.edge == edge and each.end is None]
        ticks = [(datum.tick, datum.tick) for datum in arrival.data] + list(arrival.silent)
        for first, last in sorted(ticks) if here else ():
            event = self.event(arrival, first)
            what = words.ticks(first, last) + (f" ({words.event(event)})" if event else ", silence")
            good = words.version(arrival.version)
            self.say(f"  {edge} has {arrival.stream}'s {what}, with version {good}")
            for each in here:
                if each.version <= arrival.version:
                    self.hand_over(each, arrival.stream, first, event)

    def event(self, arrival: Arrival, tick: int) -> dict[str, Value] | None:
        found = any(datum.tick == tick for datum in arrival.data)
        logged = self.hosts[arrival.stream].log[tick - 1]
        return logged if found else None  # type: ignore[return-value]

    def hand_over(
        self, each: Subscribed, stream: str, tick: int, event: dict[str, Value] | None
    ) -> None:
        if (each.name, stream) not in self.starts:
            self.starts[each.name, stream] = tick
            self.say(f"    {each.name} starts with tick {tick}")
        if event is not None and each.filter.matches(event):
            self.say(f"    {each.name} gets it")

    # -- commands ---------------------------------------------------------------------------------

    def cmd_subscribe(self, edge: str, name: str, text: str) -> None:
        self.subscribe(edge, name, text)
        self.say(f"  {name} starts with version {self.subscriptions[-1].version} of {edge}")

    def cmd_unsubscribe(self, name: str) -> None:
        each = next(s for s in self.subscriptions if s.name == name and s.end is None)
        self.unsubscribe(each)
        self.say(f"  {name} ends with version {each.end} of {each.edge}")

    def cmd_propagate(self, *edges: str) -> None:
        self.now += self.options.interest_after_s
        for edge in edges:
            router = self.hosts[edge].router
            assert router.clock is not None
            before = router.clock.propagated
            outcomes = router.time_passed(self.now)
            is_news = router.clock.propagated != before
            self.say(
                f"  {edge} tells version {router.clock.propagated}" if is_news else "  no news"
            )
            self.do(edge, outcomes)

    def cmd_deliver(self, source: str, target: str = "") -> None:
        if source != "all":
            self.deliver((source, target))
            return
        while waiting := [link for link, frames in self.links.items() if frames]:
            for link in waiting:
                self.deliver(link)

    def deliver(self, link: tuple[str, str]) -> None:
        source, target = link
        assert self.links.get(link), f"nothing is on its way from {source} to {target}"
        frame = self.links[link][0]
        self.say(f"{source} → {target}: {words.frame(frame)}")
        if isinstance(frame, Knowledge):
            self.explain(target, frame.stream, frame.mark, frame.target, list(frame.data))
        place, before = len(self.trace), self.known(target)
        super().deliver(link)
        if isinstance(frame, InterestChange | InterestState):
            site, after = frame.site, self.known(target)
            verb = "does not apply it" if after == before else "applies it"
            line = f"  {target} {verb}: V^b in {site} is {words.vector(after[site])}"
            self.trace.insert(place, line)

    def known(self, name: str) -> dict[str, dict[str, Version]]:
        return {view.site: view.versions for view in self.hosts[name].router.presences()}

    def explain(self, name: str, stream: str, mark: int, only: str, data: Sequence[Datum]) -> None:
        """What becomes of events in each direction, and why."""
        router = self.hosts[name].router
        for presence in router._presences.values() if data else ():
            for direction in presence.view.downstream(stream):
                behind = presence.view.behind[direction]
                if direction not in self.network.sites_of(name) and only in ("", *behind):
                    vector = router._shared.marks.vector(stream, mark)
                    for datum in data:
                        self.say(
                            f"  towards {direction}: {_fate(presence, direction, vector, datum)}"
                        )

    def cmd_publish(self, edge: str, *parts: str) -> None:
        host, attributes = self.hosts[edge], words.attributes(parts)
        tick, mark = len(host.log) + 1, host.mark_of(len(host.log))
        self.say(f"  tick {tick} of {edge}, mark {mark}")
        body = encode_event(Event(attributes, id=EventId(edge, 1, tick)))
        self.explain(edge, edge, mark, "", [Datum(tick, tick, body)])
        host.publish(attributes)  # type: ignore[arg-type]

    def cmd_mark(self, edge: str) -> None:
        host = self.hosts[edge]
        ticks = len(host.log)
        host.make_mark()
        if len(host.log) == ticks:
            self.say("  nothing new")

    def cmd_full(self, source: str, target: str) -> None:
        self.do(source, self.hosts[source].router.link_full(self.now, target, True))

    def cmd_free(self, source: str, target: str) -> None:
        self.do(source, self.hosts[source].router.link_full(self.now, target, False))

    def cmd_wait(self, seconds: str, *brokers: str) -> None:
        self.now += float(seconds)
        for name in brokers:
            self.do(name, self.hosts[name].router.time_passed(self.now))

    def cmd_restart(self, name: str) -> None:
        self.hosts[name].start()
        for peer in self.network.links_of(name):
            self.connect(name, peer)

    def cmd_show(self, name: str) -> None:
        self.trace += words.broker(name, self.hosts[name].router)


def _fate(
    presence: Presence, direction: str, vector: Mapping[str, Version] | None, datum: Datum
) -> str:
    behind = presence.view.behind[direction]
    known = {edge: presence._version(edge) for edge in behind}
    if vector is None:
        return "V^m is not known, sent without matching"
    wanted = {edge: vector.get(edge, NOTHING) for edge in behind}
    told = f"V^b {words.vector(known)}, V^m {words.vector(wanted)}"
    if not is_at_least(known, wanted):
        return f"{told}: not sufficient, sent without matching"
    attributes = decode_event(datum.body).attributes
    matches = any(c.conjunction.matches(attributes) for c in presence.interest.conjuncts(direction))
    return f"{told}: sufficient, {'a match' if matches else 'no match, silence'}"


# -- files ----------------------------------------------------------------------------------------


def run_scenario(path: Path) -> tuple[str, str]:
    """The text of a file, and what it should be."""
    text = path.read_text(encoding="utf-8")
    return text, replayed(text)


def replayed(text: str) -> str:
    """The same text with the trace that its commands have now."""
    stage: Stage | None = None
    result: list[str] = []
    for block in text.rstrip("\n").split("\n\n"):
        lines = block.splitlines()
        if RULE not in lines:
            result.append(block)
            continue
        given = lines[: lines.index(RULE)]
        commands = [line for line in given if not line.startswith("#")]
        stage, trace = _perform(stage, commands)
        result.append("\n".join([*given, RULE, *trace]))
    return "\n\n".join(result) + "\n"


def _perform(stage: Stage | None, commands: list[str]) -> tuple[Stage, list[str]]:
    if commands[0] == "network":
        stage = Stage(_network(commands[1:]))
        return stage, [f"  {words.links(stage.network)}"]
    assert stage is not None, "a scenario begins with a network"
    stage.trace = []
    for command in commands:
        if len(commands) > 1:
            stage.say(f"> {command}")
        trace = list(stage.trace)
        _command(stage, command.removeprefix("quietly "))
        if command.startswith("quietly "):
            stage.trace = [*trace, f"  … {len(stage.trace) - len(trace)} lines"]
    return stage, stage.trace


def _command(stage: Stage, command: str) -> None:
    verb, *rest = command.split(maxsplit=1)
    arguments = rest[0].split(maxsplit=2 if verb == "subscribe" else -1) if rest else []
    verbs: dict[str, Callable[..., None]] = {
        "subscribe": stage.cmd_subscribe,
        "unsubscribe": stage.cmd_unsubscribe,
        "propagate": stage.cmd_propagate,
        "deliver": stage.cmd_deliver,
        "publish": stage.cmd_publish,
        "mark": stage.cmd_mark,
        "full": stage.cmd_full,
        "free": stage.cmd_free,
        "break": stage.disconnect,
        "mend": stage.connect,
        "crash": stage.crash,
        "restart": stage.cmd_restart,
        "wait": stage.cmd_wait,
        "show": stage.cmd_show,
    }
    verbs[verb](*arguments)


def _network(lines: list[str]) -> Network:
    sites: dict[str, list[str]] = {}
    joins: list[tuple[str, str]] = []
    for line in lines:
        match line.split():
            case ["site", name, *brokers]:
                sites[name] = brokers
            case ["edge", *names]:
                sites |= {name: [name] for name in names}
            case ["join", site, *others]:
                joins += [(site, other) for other in others]
            case _:
                raise ValueError(f"no part of a network: {line}")
    return Network(sites, joins)
