"""`import fsq`, for programs that were written for FSQ: the names are those of penstock.fsq."""

import sys

from penstock.fsq import *  # noqa: F403 - that is what this module is for
from penstock.fsq import __all__ as __all__
from penstock.fsq import constants, path, remote
from penstock.fsq import errors as exceptions

# So that `import fsq.exceptions` and `from fsq.path import base` work, too.
_MODULES = {"constants": constants, "exceptions": exceptions, "path": path, "remote": remote}
sys.modules.update({f"{__name__}.{name}": module for name, module in _MODULES.items()})
