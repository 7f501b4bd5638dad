"""What load does to a graph: functions inlined, shapes fixed and inferred, sparse made dense."""
