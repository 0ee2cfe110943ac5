"""Mutants of clients' sessions: what a client takes, and when it may leave a broker."""

from anabranch.sim.mutants.mutant import Edit, Mutant

_PUBLISHER = "anabranch.sim.applications:SimPublisher"

MUTANTS: dict[str, Mutant] = {
    "client-no-dedup": Mutant(
        "a client takes what it has had",
        Edit(
            "anabranch.core.session.subscribe:SessionSubscription.deliver",
            "received = positions.received",
            "received = 0",
        ),
        seed=2,
        anomaly="duplicate",
    ),
    "publisher-moves-unconfirmed": Mutant(
        "a publisher moves with open events, and publishes them there under other ids",
        Edit(
            "anabranch.core.session.publish:SessionPublisher.may_move",
            "return not self._unconfirmed",
            "return True",
        ),
        Edit(
            f"{_PUBLISHER}._move",
            "self.leave()",
            "from anabranch.model.encoding import decode_envelope\n"
            "moved = [decode_envelope(body).event() for body in self.session.unconfirmed()]\n"
            "self.leave()",
        ),
        Edit(
            f"{_PUBLISHER}._move",
            "self.connect_in(0.05)",
            "for event in moved:\n"
            "    again = Event(event.attributes)\n"
            "    self.perform(self.session.publish(self.world.now, again)[1])\n"
            "self.connect_in(0.05)",
        ),
        seed=6,
        anomaly="phantom",
    ),
    "forgotten-in-doubt": Mutant(
        "a publisher that was forgotten publishes again what may be in the log",
        Edit(
            "anabranch.core.session.publish:SessionPublisher.refused",
            "frame.code, self._sent_before)",
            "frame.code, 0)",
        ),
        seed=41,
        anomaly="phantom",
        mesh_seed=69,
    ),
    "publisher-never-waits": Mutant(
        "a publisher goes on elsewhere without waiting for its unconfirmed events",
        Edit(
            "anabranch.core.session.publisher_order:PublisherOrder.decide",
            "if is_resolved:",
            "if True:",
        ),
        seed=37,
        anomaly="publisher-reordered",
    ),
}
