"""Apache Spark integration: the broker network as a data source and sink, and bulk analysis of
events.

    from anabranch.spark import session
    spark = session()
    quotes = spark.read.format("anabranch").option("brokers", "host:4100").load()

Install it with `pip install anabranch[spark]`.
"""

from anabranch.spark.session import session

__all__ = ["session"]
