"""The kernels of reading in bulk. `entries` and `rows` have what Python calls."""
