"""Spark data source `format("anabranch")`: reads and writes streams of the network.

Spark looks up this class by name. `reader` and `writer` hold the implementation, `options` the
options, also those of tables of Spark SQL. Options are validated when the source is created, so a
mistake fails `load` or `start` rather than a task. The reader and the writer are imported on
demand, because Spark's lookup of data sources imports this module in every session.

State: none. Spark creates one instance per plan and sends it to tasks.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from anabranch.spark.options import (
    TABLE_OPTIONS,
    Options,
    Use,
    read_options,
    table_options,
    with_table_options,
)


class AnabranchDataSource(DataSource):
    """Data source for the streams of a network. See the top of this module."""

    @classmethod
    def name(cls) -> str:
        return "anabranch"

    def _options(self, use: Use, schema: StructType) -> Options:
        first = schema.fields[0].metadata if schema.fields else {}
        return read_options(with_table_options(self.options, first.get(TABLE_OPTIONS), use), use)

    def schema(self) -> StructType:
        """The default schema, for a read without one."""
        from anabranch.spark.reader import offered_schema  # noqa: PLC0415

        kept = table_options(self.options)
        if kept is None:
            return offered_schema(read_options(self.options, "read"))
        schema = offered_schema(read_options(kept))
        schema.fields[0].metadata = {TABLE_OPTIONS: kept}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        from anabranch.spark.reader import batch_reader  # noqa: PLC0415

        return batch_reader(self._options("batch read", schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        from anabranch.spark.reader import StreamReader  # noqa: PLC0415

        return StreamReader(self._options("stream read", schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from anabranch.spark.writer import BatchWriter  # noqa: PLC0415

        return BatchWriter(self._options("batch write", schema), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from anabranch.spark.writer import StreamWriter  # noqa: PLC0415

        return StreamWriter(self._options("stream write", schema), schema, overwrite)
