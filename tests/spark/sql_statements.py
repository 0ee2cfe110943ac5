"""A driver that runs statements of Spark SQL and prints the rows of the last one as JSON."""

import sys

import msgspec

from anabranch.spark.session import session


class Script(msgspec.Struct, frozen=True):
    """A master, and the statements to run there."""

    master: str
    statements: list[str]


def main() -> int:
    script = msgspec.json.decode(sys.argv[1], type=Script)
    spark = session(script.master, name="sql")
    *first, last = script.statements
    for statement in first:
        spark.sql(statement).collect()
    rows = [list(row) for row in spark.sql(last).collect()]
    print("rows", msgspec.json.encode(rows).decode(), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
