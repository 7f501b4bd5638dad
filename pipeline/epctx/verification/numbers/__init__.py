"""Numbers: what the compiled models compute against what their sources compute."""
