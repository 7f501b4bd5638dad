"""Registries of the Open Container Initiative: packages as CNCF ModelPack artifacts."""
