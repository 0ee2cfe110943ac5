"""The data pipeline on Apache Spark: the network as a source and a sink, and what is done with many
events at once.

    from anabranch.spark import session
    spark = session()
    quotes = spark.read.format("anabranch").option("brokers", "host:4100").load()

It needs `pip install anabranch[spark]`.
"""

from anabranch.spark.session import session

__all__ = ["session"]
