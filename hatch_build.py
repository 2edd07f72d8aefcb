"""Compiles the rooms that a step passes through to machine code, for a wheel that asks for it.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel --no-deps .

Which modules and why is in docs/adr/0033. An editable install, and a wheel that does not ask, is
plain Python and the same program.
"""

import os
import shutil
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOTS = ("services", "schemas", "projections", "tools")
LEVEL = os.environ.get("REFOLD_COMPILE_LEVEL", "2")
"""gcc's -O: 0 compiles in a third of the time, for tests of what a compiled program does."""


class CompileHook(BuildHookInterface[Any]):
    """The hook `custom` of the wheel; `modules` and `plain` are globs below the project."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the wheel carry the shared objects beside the sources."""
        if version == "editable":
            return
        made = Path(tempfile.mkdtemp(prefix="refold-compiled-"))
        self._made = made
        try:
            compiled = self._compile(made)
        except BaseException:  # nobody calls finalize then
            shutil.rmtree(made)
            raise
        for built in compiled:
            build_data["force_include"][str(built)] = str(built.relative_to(made / "lib"))
        build_data["infer_tag"] = True
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        if hasattr(self, "_made"):
            shutil.rmtree(self._made)

    def _sources(self) -> list[str]:
        root, plain = Path(self.root), self.config["plain"]
        found = sorted(
            path
            for pattern in self.config["modules"]
            for path in root.glob(pattern)
            if not any(fnmatch(str(path.relative_to(root)), one) for one in plain)
        )
        if not found:
            raise ValueError(f"no module matches {self.config['modules']}")
        return [str(path.relative_to(root)) for path in found]

    def _compile(self, made: Path) -> list[Path]:
        from mypyc.build import mypycify
        from setuptools import Distribution

        os.chdir(self.root)
        os.environ["MYPYPATH"] = os.pathsep.join(ROOTS)
        checked = ["--config-file=", "--explicit-package-bases", "--ignore-missing-imports"]
        extensions = mypycify(
            [*checked, *self._sources()],
            opt_level=LEVEL,
            debug_level="0",
            multi_file=True,
            target_dir=str(made / "c"),
            group_name="refold",
        )
        command = Distribution({"name": "refold", "ext_modules": extensions}).get_command_obj(
            "build_ext"
        )
        command.build_lib, command.build_temp = str(made / "lib"), str(made / "objects")
        command.ensure_finalized()
        command.run()
        return sorted((made / "lib").rglob("*.so"))
