"""The actions, one module each; those that run models share one until they have one runner."""
