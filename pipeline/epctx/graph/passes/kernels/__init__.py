"""Kernels that compute constants exactly, or not at all."""
