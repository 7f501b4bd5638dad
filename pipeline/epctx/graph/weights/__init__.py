"""The bytes of tensors: on disk, mapped, planned."""
