"""Packaging: what users install. Exact versions for development and CI stand in constraints.txt."""

import platform
import re
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "nmtkit/version.py").read_text(encoding="utf-8"))
assert VERSION

# The compiled search, once for each set of instructions. Without a suitable compiler, nmtkit is installed without it.
NATIVE_FLAGS = {
    "_native_scalar": [],
    "_native_avx2": ["-DNMTKIT_AVX2", "-mavx2", "-mfma", "-mno-avx512f"],
    "_native_avx512": [
        "-DNMTKIT_AVX512",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512vnni",
        "-mfma",
    ],
    "_native_neon": ["-DNMTKIT_NEON"],
}
PROCESSORS = {  # of the builds that need one
    "_native_avx2": ("x86_64", "AMD64"),
    "_native_avx512": ("x86_64", "AMD64"),
    "_native_neon": ("aarch64", "arm64"),
}
# Without contraction, x·y + z is rounded alike by every compiler and processor.
COMMON_FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fvisibility=hidden"]
NATIVE = [
    Extension(
        f"nmtkit.{name}",
        ["nmtkit/native/module.cpp"],
        depends=[str(header.relative_to(HERE)) for header in sorted((HERE / "nmtkit/native").glob("*.h"))],
        define_macros=[("NMTKIT_MODULE", name)],
        language="c++",
        extra_compile_args=[*COMMON_FLAGS, *flags],
        # bind each build to its own functions: a host program may share the symbols of all its libraries
        extra_link_args=["-Wl,-Bsymbolic"] if sys.platform == "linux" else [],
        optional=True,
    )
    for name, flags in NATIVE_FLAGS.items()
    if platform.machine() in PROCESSORS.get(name, (platform.machine(),))
]

setup(
    name="nmtkit",
    version=VERSION.group(1),
    description="Neural machine translation with the Transformer: preprocess, train, average, generate",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    ext_modules=NATIVE,
    packages=find_packages(include=["nmtkit", "nmtkit.*"]),
    package_data={"nmtkit": ["py.typed", "_native.pyi", "decoding/attention.html", "serving/page.html"]},
    install_requires=[
        "click>=8.1",
        "numpy>=1.26",
        "regex>=2022.1.18",
        "rich>=14,<16",
        "rich-click>=1.9,<2",
        "sacrebleu>=2.4",
        "sentencepiece>=0.2.0",
        "tensorboard>=2.16",
        "tomli>=2.0; python_version < '3.11'",
        "torch>=2.9",
        "tqdm>=4.66",
    ],
    extras_require={
        "dev": ["hypothesis>=6.100", "mypy", "pytest", "pytest-timeout", "pytest-xdist", "ruff"],
        "docs": ["mkdocs-material>=9.7", "mkdocstrings[python]>=1.0"],
        "export": ["ctranslate2>=4.5", "safetensors>=0.5"],
        "serve": ["starlette>=1.0,<2", "uvicorn>=0.30,<1"],
    },
    entry_points={
        "console_scripts": [
            "nmt-preprocess = nmtkit.cli.start:preprocess",
            "nmt-train = nmtkit.cli.start:train",
            "nmt-average = nmtkit.cli.start:average",
            "nmt-export = nmtkit.cli.start:export",
            "nmt-generate = nmtkit.cli.start:generate",
            "nmt-score = nmtkit.cli.start:score",
            "nmt-serve = nmtkit.cli.start:serve",
        ]
    },
)
