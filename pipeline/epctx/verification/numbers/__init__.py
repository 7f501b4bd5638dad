"""Numbers: outputs of compiled models compared with outputs of their sources."""
