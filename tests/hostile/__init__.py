"""Hostile inputs and faults: a table of everything tried, and what became of it.

`table` has what a row is, `running` carries one out and checks what must hold for all of them, the
other modules hold the rows by subject, TABLE.md says what happened. To add a row, register it in a
module that `every` imports, and write the table anew:

    python -m tests.hostile                 # all rows, two minutes
    python -m tests.hostile "external data" # the rows of one class, or with these words in them
"""
