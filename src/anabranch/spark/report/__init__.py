"""Reports as web pages: one file each, with everything in it, for people who look at a browser."""
