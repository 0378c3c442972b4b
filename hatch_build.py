"""Build hook of hatchling: a wheel has the hot modules compiled if the machine can compile them.

With a C compiler the result is a wheel for this platform and Python. Without one, or with PENSTOCK_PURE=1, it is a
wheel for all of them, without compiled modules. An editable installation is left to `scripts/native`, which compiles
in place.
"""

from __future__ import annotations

import os
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def load_native(root: str) -> Any:
    """Return `scripts/native` as a module."""
    loader = SourceFileLoader("penstock_native", str(Path(root, "scripts", "native")))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


class CompiledModules(BuildHookInterface[Any]):
    """Add the compiled modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if os.environ.get("PENSTOCK_PURE") == "1":
            self.app.display_info("PENSTOCK_PURE=1 is set: building a wheel without compiled modules")
            return
        native = load_native(self.root)
        try:
            files = native.compiled()
        except (native.ToolMissing, native.CompilationFailed, OSError) as error:
            self.app.display_warning(
                f"{error}\nbuilding a wheel without compiled modules: it works the same, more slowly"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(path): str(place) for place, path in files.items()})
