"""`python -m kestrelmq` is the `kestrelmq` command."""

from kestrelmq.cli.main import main

if __name__ == "__main__":
    main()
