"""Many simulations at once: one for each task of Spark, one row for each in Parquet.

    results = sweep(spark, read_grids(path), directory)
    results.groupBy("routing").avg("traffic_bytes").show()

Simulations know nothing of each other, so a sweep uses every core of a cluster. Rules:

1. Each simulation is a file in the directory, named by its parameters, written beside its place and
   moved there whole. So whatever ends a sweep, the next one goes on where it stopped: what is there
   is not run again.
2. A simulation that fails is a row with an `error`; `retry` runs those again.
3. The directory must be the same for the driver and for all tasks: on a cluster, a shared one.
4. Results belong to the version of the code that made them (column `version`). For another version
   take another directory.

State kept: the directory.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import from_arrow_schema

from anabranch.model.errors import LocalError
from anabranch.spark.sweep_grid import Run
from anabranch.spark.sweep_run import Outcome, simulate

_SUFFIX = ".parquet"
_TYPES = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    int | None: pa.int64(),
    float | None: pa.float64(),
}


def _arrow() -> pa.Schema:
    fields = [("run", pa.string()), ("version", pa.string())]
    parts = (*msgspec.structs.fields(Run), *msgspec.structs.fields(Outcome))
    fields += [(field.name, _TYPES.get(field.type, pa.string())) for field in parts]
    return pa.schema(fields)


SCHEMA = _arrow()


def sweep(
    spark: SparkSession,
    runs: Sequence[Run],
    directory: Path,
    *,
    retry: bool = False,
    again: bool = False,
) -> DataFrame:
    """Run what is missing, or with `again` everything; all rows of the directory."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    missing = list(runs) if again else left(spark, runs, directory, retry=retry)
    if missing:
        numbers = spark.range(0, len(missing), 1, len(missing))
        told = numbers.mapInArrow(_running(missing, str(directory)), "run string").collect()
        gone = [row["run"] for row in told if not _file(directory, row["run"]).exists()]
        if gone:
            raise LocalError(
                f"tasks have written {len(gone):,} results to {directory}, which this machine does"
                " not see; give a directory that all machines share"
            )
    return results(spark, directory)


def left(
    spark: SparkSession, runs: Sequence[Run], directory: Path, *, retry: bool = False
) -> list[Run]:
    """Those that are not in the directory; with `retry` also those that failed."""
    done = {path.stem for path in directory.glob(f"*{_SUFFIX}")}
    if retry and done:
        failed = results(spark, directory).where(col("error") != "").select("run").collect()
        done -= {row["run"] for row in failed}
    return [run for run in {run.key: run for run in runs}.values() if run.key not in done]


def results(spark: SparkSession, directory: Path) -> DataFrame:
    """All rows of a directory."""
    schema = from_arrow_schema(SCHEMA)
    if not any(directory.glob(f"*{_SUFFIX}")):
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(str(directory))


def _running(
    runs: Sequence[Run], directory: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                write_row(runs[number], simulate(runs[number]), Path(directory))
                keys = pa.array([runs[number].key])
                yield pa.RecordBatch.from_arrays([keys], names=["run"])

    return run


def write_row(run: Run, outcome: Outcome, directory: Path) -> None:
    """The file of one simulation, whole or not at all."""
    row: dict[str, object] = {"run": run.key, "version": version("anabranch")}
    row |= run.parameters | msgspec.to_builtins(outcome)
    fresh = directory / f".{run.key}.{secrets.token_hex(4)}"
    pq.write_table(pa.Table.from_pylist([row], schema=SCHEMA), fresh)
    fresh.replace(_file(directory, run.key))


def _file(directory: Path, key: str) -> Path:
    return directory / f"{key}{_SUFFIX}"
