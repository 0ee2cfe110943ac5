"""Archive: streams in Parquet files, each event once, for longer than logs retain them.

    layout          directory structure, and the writer lock
    manifest        numbered commits that list the files
    columns         mapping of attributes to columns
    tables          rows of events to Arrow tables in these columns
    restored_rows   ... and back
    files           one Parquet file: writing, reading, checking
    task            task of the archiving job: fetches a range of ticks, writes files
    writer          driver of the archiving job: ranges, rounds, commits
    compaction, verification, delta    maintenance of an archive
    reader          reads an archive like a log, without Spark

`docs/how-to/archive.md` specifies what other programs can rely on.
"""
