"""Lets `python -m anabranch` be the `anabranch` command, where no script is on the path."""

from anabranch.cli.main import main

if __name__ == "__main__":
    main()
