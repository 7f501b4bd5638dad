"""The shared cache: a second tier behind the local one, in a store that is not trusted."""
