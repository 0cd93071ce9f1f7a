"""Compiles against the torch that is installed; where no compiler is, tt-core goes on without."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    ext_modules=[
        CppExtension(
            "tt_native._snapshot",
            ["src/tt_native/snapshot.cpp"],
            extra_compile_args=["-O2", "-g0", "-fvisibility=hidden"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
)
