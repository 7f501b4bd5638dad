"""Sizes in bytes, in words."""


def size_words(size: int) -> str:
    """A size in bytes for people, in powers of 1000."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"
