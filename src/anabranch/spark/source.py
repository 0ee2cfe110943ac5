"""`format("anabranch")`: the network as a source and a sink of data frames.

This is what Spark looks for; the work is in `readers` and `writers`, and what can be said in
`options`. Options are checked when they are given, so a mistake is an error of `load` or `start`
and not of some task. Both halves are imported when they are needed: whoever looks for data sources
imports this module, in every session.

State: none; Spark makes one of these for every plan, and sends it to tasks.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from anabranch.spark.options import Options, Use, read_options


class AnabranchDataSource(DataSource):
    """Streams of a network. See the top of this module."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return "anabranch"

    def _options(self, use: Use) -> Options:
        return read_options(self.options, use)

    def schema(self) -> StructType:
        """What is offered to whoever asks for nothing."""
        from anabranch.spark.reader import offered_schema  # noqa: PLC0415

        return offered_schema(self._options("read"))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        from anabranch.spark.reader import batch_reader  # noqa: PLC0415

        return batch_reader(self._options("batch read"), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """For `spark.readStream`."""
        from anabranch.spark.reader import StreamReader  # noqa: PLC0415

        return StreamReader(self._options("stream read"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For `frame.write`."""
        from anabranch.spark.writer import BatchWriter  # noqa: PLC0415

        return BatchWriter(self._options("batch write"), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """For `frame.writeStream`."""
        from anabranch.spark.writer import StreamWriter  # noqa: PLC0415

        return StreamWriter(self._options("stream write"), schema, overwrite)
