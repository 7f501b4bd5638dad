"""`epctx diff`: compare two builds, two locks, or a build and a lock (design section 10)."""
