"""`import fsq`, for programs that were written for FSQ: the names are those of penstock.fsq."""

import sys

from penstock.fsq import *  # noqa: F403 - that is what this module is for
from penstock.fsq import __all__ as __all__
from penstock.fsq import constants, path, remote

# So that `from fsq.path import base` finds them too.
sys.modules.update({f"{__name__}.{module.__name__.rpartition('.')[2]}": module for module in (constants, path, remote)})
