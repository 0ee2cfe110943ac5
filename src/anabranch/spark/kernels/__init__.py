"""Compiled loops of the pipeline: events to columns and back, and what is done with them."""
