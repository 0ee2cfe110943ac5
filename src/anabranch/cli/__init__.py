"""The `anabranch` command: reads arguments, calls the rooms below, prints, fails in one line."""
