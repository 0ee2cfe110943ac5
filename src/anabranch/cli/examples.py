"""Examples at the end of the help of each command whose docstring has none."""

import typer

#: Command → arguments of its example, both without the program name.
EXAMPLES = {
    "up": "redundant --state trial",
    "status": "--network trial/network.toml",
    "top": "--network trial/network.toml",
    "broker": "B1 --network network.toml --state /var/lib/anabranch/B1",
    "demo": "--routing mesh",
    "sim": "--routing tree --seeds 0..99",
    "warm": "",
    "completion": "bash",
    "network add-broker": "network.toml B7 --below B2",
    "network add-site": "network.toml west --broker B8 --broker B9 --join relays",
    "network remove-broker": "network.toml B7",
    "network remove-site": "network.toml west",
    "network add-link": "network.toml B2 B3",
    "network remove-link": "network.toml B2 B3",
    "network apply": "network.toml --state trial",
    "network check": "network.toml",
    "network new": "redundant --out network.toml",
    "network certificates": "network.toml --days 30",
    "pattern drop": "127.0.0.1:4100 rise",
    "pattern list": "--network trial/network.toml",
    "replication show": "--network trial/network.toml",
    "log ls": "trial/state/e1",
    "log cat": "trial/state/e1 --since 10m --where \"symbol = 'IBM'\"",
    "log verify": "trial/state/e1",
    "log copies": "trial/state/e1",
    "log aside": "trial/state/e1",
    "log repair": "trial/state/e1",
    "log renew": "trial/state/e1",
    "trace verify": "traces/*.jsonl --state trial/state --complete",
    "filter check": "\"symbol = 'IBM' AND price < 22\"",
    "filter match": '"price > 50" < events.jsonl',
    "filter covers": '"price > 10" "price > 20"',
    "pipeline archive write": "--network network.toml --to archive",
}


def add_examples(app: typer.Typer, path: str = "") -> None:
    """Append its example to the help of every command of an application."""
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        if f"{path}{name}" in EXAMPLES:
            line = f"anabranch {path}{name} {EXAMPLES[path + name]}".rstrip()
            command.epilog = f"Example:\n\n    {line}"
    for group in app.registered_groups:
        assert group.typer_instance is not None
        add_examples(group.typer_instance, f"{path}{group.typer_instance.info.name} ")
