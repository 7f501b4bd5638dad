"""Optimized models on disk."""
