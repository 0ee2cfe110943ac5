"""The kernels of bulk reading. Python calls those in `entries` and `rows`."""
