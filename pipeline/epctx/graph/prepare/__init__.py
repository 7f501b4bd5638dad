"""Steps of load: functions inlined, shapes fixed and inferred, sparse tensors made dense."""
