"""The package: metadata, ranges of dependencies, compiled search. constraints.txt pins versions for development."""

import os
import platform
import re
import runpy
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "nmtkit/version.py").read_text(encoding="utf-8"))
assert VERSION
REQUIRED = os.environ.get("NMTKIT_NATIVE") == "required"  # a failed compilation is then an error, not a warning

SOURCES = runpy.run_path(str(HERE / "nmtkit/machine/native_sources.py"))["digest"]()

# The compiled search, one module for each instruction set.
NATIVE_FLAGS = {
    "_native_scalar": [],
    "_native_avx2": ["-DNMTKIT_AVX2", "-mavx2", "-mfma", "-mno-avx512f"],
    "_native_avx512": ["-DNMTKIT_AVX512", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"],
    "_native_avx512vnni": [
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
PROCESSORS = {  # the machines of each build that is not portable
    "_native_avx2": ("x86_64", "AMD64"),
    "_native_avx512": ("x86_64", "AMD64"),
    "_native_avx512vnni": ("x86_64", "AMD64"),
    "_native_neon": ("aarch64", "arm64"),
}
# -ffp-contract=off: every compiler and processor rounds x·y + z alike. -g0: debug symbols would make the modules ten
# times larger.
COMMON_FLAGS = ["-std=c++17", "-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden"]
NATIVE = [
    Extension(
        f"nmtkit.{name}",
        ["nmtkit/native/module.cpp"],
        define_macros=[("NMTKIT_MODULE", name), ("NMTKIT_SOURCES", SOURCES)],
        language="c++",
        extra_compile_args=[*COMMON_FLAGS, *flags],
        # Otherwise a build may call the functions of another one, in programs that make all symbols global.
        extra_link_args=["-Wl,-Bsymbolic"] if sys.platform == "linux" else [],
        optional=not REQUIRED,
    )
    for name, flags in NATIVE_FLAGS.items()
    if platform.machine() in PROCESSORS.get(name, (platform.machine(),))
]

NATIVE.append(
    Extension(
        "nmtkit._words",
        ["nmtkit/native/words.cpp"],
        define_macros=[("NMTKIT_SOURCES", SOURCES)],
        language="c++",
        extra_compile_args=COMMON_FLAGS,
        optional=not REQUIRED,
    )
)


class BuildSearch(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Compiles the search. A module that fails to compile is left out with a warning, unless it is required."""

    def run(self) -> None:
        self._built: set[str] = set()
        self.force = True  # each module has the digest of all sources
        super().run()
        failed = [extension.name for extension in self.extensions if extension.name not in self._built]
        if failed:
            self.warn(
                f"NOT COMPILED: {', '.join(failed)}. Without them translation on a CPU is slower or has no int8: "
                "install a C++17 compiler and Python's headers (g++, python3-dev), then nmtkit again"
            )

    def build_extension(self, extension: Extension) -> None:
        super().build_extension(extension)
        self._built.add(extension.name)


def long_description() -> str:
    """README without pictures and links to files, which a package index cannot show."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^<picture>.*?</picture>\n+", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\[([^]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


if sys.platform == "win32":
    sys.exit("nmtkit runs on Linux and macOS: on Windows install it in WSL")
setup(
    name="nmtkit",
    version=VERSION.group(1),
    description="Neural machine translation with the Transformer: preprocess, train, average, translate, serve",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="nmtkit contributors",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["machine translation", "neural machine translation", "nmt", "transformer", "pytorch", "sentencepiece"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    ext_modules=NATIVE,
    cmdclass={"build_ext": BuildSearch},
    packages=find_packages(include=["nmtkit", "nmtkit.*"]),
    package_data={
        "nmtkit": [
            "py.typed",
            "_native.pyi",
            "_words.pyi",
            "cli/other_toolkits.toml",
            "conversion/browser.html",
            "conversion/offline.js",
            "decoding/attention.html",
            "preprocessing/report.html",
            "serving/openapi.json",
            "serving/page.html",
        ]
    },
    install_requires=[
        "click>=8.1",
        "numpy>=1.26",
        "regex>=2022.1.18",
        "rich>=14,<16",
        "rich-click>=1.9,<2",
        "sacrebleu>=2.4",
        "sentencepiece>=0.2.0",
        "sentencex>=1.0.32,<2",
        "tensorboard>=2.16",
        "tomli>=2.0; python_version < '3.11'",
        "torch>=2.9",
        "tqdm>=4.66",
    ],
    extras_require={
        "dev": [
            "hypothesis>=6.100",
            "matplotlib>=3.10",
            "mypy",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "sacremoses>=0.1.1,<1",
            "schedulefree>=1.4,<2",
            "subword-nmt>=0.3.8",
            "transformers>=5.20; python_version >= '3.11'",
        ],
        "clean": ["fasttext-predict>=0.9.2.4,<1"],  # language identification of nmt-preprocess
        "documents": ["markdown-it-py>=4,<5"],  # Markdown of nmt-generate --document md
        "docs": ["zensical>=0.0.67"],
        "export": ["ctranslate2>=4.6.3", "safetensors>=0.5"],
        "import": [
            "huggingface-hub>=0.34",  # the command `hf`, which downloads models
            "sacremoses>=0.1.1,<1",  # for FSMT and fairseq
            "safetensors>=0.5",
        ],
        "ja": ["sacrebleu[ja]>=2.4"],  # ja-mecab of nmt-score
        "ko": ["sacrebleu[ko]>=2.4"],
        "schedule-free": ["schedulefree>=1.4,<2"],  # nmt-train --optimizer schedule-free
        "serve": ["prometheus-client>=0.22,<1", "python-multipart>=0.0.20,<1", "starlette>=1.0,<2", "uvicorn>=0.30,<1"],
    },
    entry_points={
        "console_scripts": [
            "nmt-preprocess = nmtkit.cli.start:preprocess",
            "nmt-train = nmtkit.cli.start:train",
            "nmt-average = nmtkit.cli.start:average",
            "nmt-export = nmtkit.cli.start:export",
            "nmt-import = nmtkit.cli.start:import_",
            "nmt-generate = nmtkit.cli.start:generate",
            "nmt-score = nmtkit.cli.start:score",
            "nmt-serve = nmtkit.cli.start:serve",
        ]
    },
)
