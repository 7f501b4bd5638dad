"""Partitions: assignment of nodes to EPs, cutting out of a model, pieces."""
