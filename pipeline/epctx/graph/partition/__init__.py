"""Who takes which node, and a partition cut out of its model."""
