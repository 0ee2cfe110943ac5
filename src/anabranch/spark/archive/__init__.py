"""The archive: streams in Parquet files, each event once, for longer than logs are kept.

    layout      where what stands in the directory, and who may write there
    manifest    the numbered commits that say which files there are
    naming      which column an attribute stands in
    tables      rows of events as Arrow tables in these columns
    restoring   ... and back
    files       one Parquet file: written, read, checked
    task        what a Spark task does: fetch a range of ticks, write files
    writing     the driver: ranges, rounds, commits
    compacting, verifying, delta    what else can be done with an archive
    serving     an archive read like a log, without Spark

`docs/how-to/archive.md` says what other programs can rely on.
"""
