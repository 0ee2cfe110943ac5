"""Where Spark looks for data sources: `format("anabranch")` works without a call to register it.

Spark imports every top-level module whose name begins with `pyspark_`, and takes its
`DefaultSource`.
"""

from anabranch.spark.source import AnabranchDataSource as DefaultSource

__all__ = ["DefaultSource"]
