"""Checked-in generators of models for the tests, the quickstart and the examples."""
