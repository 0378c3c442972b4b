"""`penstock version`: the version of the installed package, and whether compiled modules are in use."""

import sys

from penstock.native import modules_in_use


def version() -> str:
    """Return the version in the package's metadata."""
    # Imported here: it takes longer than everything else that `penstock cli` needs.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("penstock")
    except PackageNotFoundError:
        return "unknown (run from a source tree that is not installed)"


def run(argv: list[str]) -> int:
    """Print `penstock <version> (<modules>)`."""
    if argv and argv[0] not in ("-h", "--help"):
        print(f"penstock version takes no arguments, but got: {argv[0]}", file=sys.stderr)
        return 2
    print("usage: penstock version" if argv else f"penstock {version()} ({modules_in_use()})")
    return 0
