"""Tests: unit mirrors src, property holds Hypothesis against naive oracles."""
