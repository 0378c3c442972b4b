"""Penstock: one job queue for brokers, databases and directories.

The hot modules may be compiled (`make native`); the sources stay beside them and do the same. Compiled ones that are
older than their source are not used, and neither is any of them with PENSTOCK_PURE=1.
"""

from penstock.native import choose_modules

__version__ = "0.1.0"
__all__ = ["__version__"]

choose_modules()
