"""Builds the native kernels; everything else about the package is in pyproject.toml.

One source, one shared library for each kind of processor; the newest that runs is chosen when gossamer is imported.
A library that cannot be built is left out, and without any of them gossamer computes with torch alone. The libraries
are plain C, loaded by ctypes: one wheel serves every Python.
"""

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = "src/gossamer/kernels/csrc"
HEADERS = [
    f"{SOURCES}/{name}.h"
    for name in (
        "lanes",
        "noise",
        "plan",
        "pack",
        "curvature",
        "forward",
        "backward",
        "members",
        "perceptrons",
        "select",
    )
]
# No -ffast-math: sums keep their order, and what is not finite is seen as such.
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi", "-g0"]
LEVELS = {"generic": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    # 256-bit vectors on AVX-512 machines too: what counts is its 32 registers, and wider loads cross more cache lines.
    LEVELS |= {"v3": ["-march=x86-64-v3"], "v4": ["-march=x86-64-v4", "-mprefer-vector-width=256"]}


class BuildKernels(build_ext):
    """With OpenMP where the compiler has it, with one thread where it has not."""

    def get_ext_filename(self, fullname: str) -> str:
        """A name without the version of Python, as nothing of the library depends on it."""
        return str(Path(*fullname.split("."))) + ".so"

    def copy_extensions_to_source(self) -> None:
        """Build in place, and leave no library of another name there, which would be loaded instead."""
        super().copy_extensions_to_source()
        for old in Path("src/gossamer/kernels").glob("_cpu_*.cpython-*"):
            old.unlink()

    def build_extension(self, extension: Extension) -> None:
        """Compile one level; ``optional`` turns a failure into a line of the log."""
        flags, links = extension.extra_compile_args, extension.extra_link_args
        try:
            extension.extra_compile_args, extension.extra_link_args = [*flags, "-fopenmp"], [*links, "-fopenmp"]
            super().build_extension(extension)
        except Exception:
            extension.extra_compile_args, extension.extra_link_args = flags, links
            super().build_extension(extension)


class WheelForEveryPython(bdist_wheel):
    """Bound to the platform only."""

    def get_tag(self) -> tuple[str, str, str]:
        """Any Python 3, no ABI of it."""
        return "py3", "none", super().get_tag()[2]


extensions = [
    Extension(
        f"gossamer.kernels._cpu_{level}",
        [f"{SOURCES}/kernels.cpp"],
        depends=HEADERS,
        extra_compile_args=[*FLAGS, *flags],
        language="c++",
        optional=True,
    )
    for level, flags in LEVELS.items()
]

setup(
    ext_modules=[] if sys.platform == "win32" else extensions,
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelForEveryPython},
)
