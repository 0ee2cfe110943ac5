"""Registration of the Spark data source: `format("anabranch")` works without an explicit call.

Spark imports every top-level module whose name begins with `pyspark_`, and registers its
`DefaultSource`.
"""

from anabranch.spark.source import AnabranchDataSource as DefaultSource

__all__ = ["DefaultSource"]
