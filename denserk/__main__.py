"""`python -m denserk`, and the console script."""

from denserk.cli.app import run


def main() -> None:
    """Runs the command line and exits with its status."""
    raise SystemExit(run())


if __name__ == "__main__":
    main()
