"""Two builds on one page: `epctx report A B`. What differs is what `commands.diff` finds."""
