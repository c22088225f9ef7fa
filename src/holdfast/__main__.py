"""`holdfast`, and `python -m holdfast`. The version is printed without loading the command line, which takes far longer."""

import sys


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("holdfast")
        except PackageNotFoundError:
            number = "unknown"
        print(f"holdfast {number}")  # noqa: T201
        return
    from holdfast.cli import main as run

    run()


if __name__ == "__main__":
    main()
