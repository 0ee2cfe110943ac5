"""Compiled kernels of the Spark pipeline: events to columns and back, matching, and auditing."""
