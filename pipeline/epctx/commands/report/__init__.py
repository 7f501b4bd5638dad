"""`epctx report`: the build report as one HTML page."""
