"""Builds the native engine when the package is installed, where there is a C++ compiler."""

import importlib.util
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeEngine(BuildHookInterface):
    """Compiles src/glassformer/runtime/native; without a compiler the package is installed all the same."""

    def initialize(self, version, build_data):
        if self.target_name != "wheel":
            return
        builder = _builder(Path(self.root))
        target = builder.SOURCES / builder.NAME
        try:
            sets = builder.build(target)
        except builder.BuildError as error:
            print(f"native engine: not built: {error}; everything still works, more slowly", file=sys.stderr)
            return
        print(f"native engine: built for {', '.join(sets)}", file=sys.stderr)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for file in (target, builder.sum_of(target)):
            build_data["artifacts"].append(f"/{file.relative_to(self.root).as_posix()}")


def _builder(root):
    """The module that builds, alone: what the package imports is not installed yet."""
    spec = importlib.util.spec_from_file_location("build_native", root / "src/glassformer/runtime/build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
