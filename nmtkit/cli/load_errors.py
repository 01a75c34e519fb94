"""Describes in one line why a module or its shared library could not be loaded. It imports almost nothing."""

from types import TracebackType

# The errors of glibc and musl. A limit is the usual cause.
_LACK_OF_MEMORY = ("failed to map", "cannot allocate memory", "cannot map")
MEMORY_ADVICE = "stop other processes, or raise the limit (ulimit -v)"


def describe_load_error(error: ImportError | OSError | MemoryError) -> str:
    """The library and the reason. A page of advice, such as numpy's, is replaced by the error that it explains."""
    if isinstance(error, MemoryError):
        return f"out of memory while loading {_importing(error.__traceback__)}: {MEMORY_ADVICE}"
    first: BaseException = error
    while isinstance(cause := first.__cause__ or first.__context__, ImportError | OSError):
        first = cause
    reason = " ".join(str(first).split())
    lacks_memory = any(words in reason.lower() for words in _LACK_OF_MEMORY)
    return f"cannot load a library: {reason}" + f"; {MEMORY_ADVICE}" * lacks_memory


def _importing(trace: TracebackType | None) -> str:
    """The package whose code was running, apart from Python's import system."""
    package = "Python"
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__"))
        if not name.startswith("importlib."):
            package = name.partition(".")[0]
        trace = trace.tb_next
    return package
