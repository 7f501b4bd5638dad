"""The command line: arguments, calls, rendering; nothing else (design section 10)."""
