"""Tools for developers, which are not a part of the package: `python -m tools.families`."""
