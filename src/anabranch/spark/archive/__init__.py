"""Archive: streams in Parquet files, each event once, for longer than logs retain them.

    manifest    numbered commits that list the files, the directory, and the writer lock
    columns     events as columns, and back
    files       one Parquet file: writing, reading, checking
    writer      archiving job: plan, tasks, rounds, commits
    compaction, verification, delta    maintenance of an archive
    reader      reads an archive like a log, without Spark

`docs/how-to/archive.md` specifies what other programs can rely on.
"""
