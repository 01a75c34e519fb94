"""Packaging: what users install. Exact versions for development and CI stand in constraints.txt."""

import platform
import re
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "nmtkit/version.py").read_text(encoding="utf-8"))
assert VERSION

# Inference in C++, once for each set of instructions. Where there is no compiler that takes it, nmtkit is installed
# without.
INSTRUCTIONS = {
    "_native_avx2": ["avx2", "fma", "no-avx512f"],
    "_native_avx512": ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "fma"],
}
NATIVE = [
    Extension(
        f"nmtkit.{name}",
        ["nmtkit/native/module.cpp"],
        depends=[str(header.relative_to(HERE)) for header in sorted((HERE / "nmtkit/native").glob("*.h"))],
        define_macros=[("NMTKIT_MODULE", name), *([("NMTKIT_AVX512", None)] if "avx512f" in needed else [])],
        language="c++",
        extra_compile_args=["-std=c++17", "-O3", "-fvisibility=hidden", *(f"-m{each}" for each in needed)],
        # each build calls its own functions, also where a program shares the symbols of all that it loads
        extra_link_args=["-Wl,-Bsymbolic"] if sys.platform == "linux" else [],
        optional=True,
    )
    for name, needed in INSTRUCTIONS.items()
]

setup(
    name="nmtkit",
    version=VERSION.group(1),
    description="Neural machine translation with the Transformer: preprocess, train, average, generate",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    ext_modules=NATIVE if platform.machine() in ("x86_64", "AMD64") else [],
    packages=find_packages(include=["nmtkit", "nmtkit.*"]),
    package_data={"nmtkit": ["py.typed", "_native.pyi", "decoding/attention.html", "serving/page.html"]},
    install_requires=[
        "click>=8.1",
        "numpy>=1.26",
        "regex>=2022.1.18",
        "sacrebleu>=2.4",
        "sentencepiece>=0.2.0",
        "tensorboard>=2.16",
        "tomli>=2.0; python_version < '3.11'",
        "torch>=2.9",
        "tqdm>=4.66",
    ],
    extras_require={
        "dev": ["hypothesis>=6.100", "mypy", "pytest", "pytest-timeout", "pytest-xdist", "ruff"],
        "export": ["ctranslate2>=4.5", "safetensors>=0.5"],
        "serve": ["starlette>=1.0,<2", "uvicorn>=0.30,<1"],
    },
    entry_points={
        "console_scripts": [
            "nmt-preprocess = nmtkit.cli.preprocess:main",
            "nmt-train = nmtkit.cli.train:main",
            "nmt-average = nmtkit.cli.average:main",
            "nmt-export = nmtkit.cli.export:main",
            "nmt-generate = nmtkit.cli.generate:main",
            "nmt-score = nmtkit.cli.score:main",
            "nmt-serve = nmtkit.cli.serve:main",
        ]
    },
)
