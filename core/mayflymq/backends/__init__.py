"""The stores that can hold a queue. `base.open_backend(url)` imports the one that it needs and no other."""
