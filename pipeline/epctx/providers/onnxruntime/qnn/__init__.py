"""Qualcomm's QNN execution provider."""
