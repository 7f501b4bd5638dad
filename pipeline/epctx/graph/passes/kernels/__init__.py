"""How constants are computed: exactly, or not at all."""
