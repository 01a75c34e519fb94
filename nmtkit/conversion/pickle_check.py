"""Checks a pickle before it is loaded: it may only build tensors, plain containers, options, and a few known classes.

The opcodes are followed without building any object. Time and memory are linear in the size of the pickle.
"""

import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from nmtkit.errors import UserError

_MAX_NESTING = 100
_MAX_KEY = 2**60  # Python hashes integers modulo 2**61 - 1
_MAX_REPETITION = 100  # of shared containers: the repr of a value, and a comparison, visit each repetition
_NEW_TENSOR = "torch._utils _rebuild_tensor_v2"
_ORDERED_DICT, _NAMESPACE = "collections OrderedDict", "argparse Namespace"
_ENCODE = "_codecs encode"
_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")  # before release 2, and since
IGNORED = (  #: module and name of classes and functions besides weights and options; their values are ignored
    *(f"{module} {name}" for module in _NUMPY for name in ("scalar", "_reconstruct")),
    *("numpy dtype", "numpy ndarray"),
    *(f"fairseq.meters {name}" for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")),
    *("omegaconf.base ContainerMetadata", "omegaconf.base Metadata"),
    *("typing Any", *(f"__builtin__ {name}" for name in ("dict", "list", "long"))),
)
CONFIG_NODES = (  #: classes of omegaconf, which hold options
    *("omegaconf.dictconfig DictConfig", "omegaconf.listconfig ListConfig", "omegaconf.nodes AnyNode"),
)
DEFAULT_DICT = "collections defaultdict"
_PARENT = "_parent"  # attribute of a node of omegaconf
_REDUCED = (_NEW_TENSOR, "torch._utils _rebuild_parameter", _ORDERED_DICT, DEFAULT_DICT, _ENCODE, *IGNORED)
_CREATED = (_NAMESPACE, _ORDERED_DICT, *IGNORED, *CONFIG_NODES)
_STORAGE_OR_DTYPE = re.compile(r"torch(\.cuda|\.storage)? \w+Storage|torch (bfloat16|bool|float\d+|u?int\d+)")
_ATOMS = (
    *("NONE", "NEWFALSE", "NEWTRUE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"),
    "SHORT_BINSTRING",
)
_EMPTY = {"EMPTY_TUPLE": "tuple", "EMPTY_LIST": "list", "EMPTY_DICT": "dict"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(eq=False, slots=True)
class _Item:
    """A value that a pickle builds."""

    kind: str  # "atom", "tuple", "list", "dict", "storage", "global", or "result of NAME"
    content: object = None  # of an atom; the name of a global
    parts: list["_Item"] = field(default_factory=list)


def check_pickle(pickle: IO[bytes]) -> None:
    """Check the next pickle, and read it to its end.

    Raises UserError for a class that a checkpoint does not need, naming it, for arguments that are not those of
    `torch.save`, for keys of dicts that are containers, and for containers that repeat each other so often that a visit
    would take far longer than reading. Malformed pickles raise LookupError, TypeError or ValueError.
    """
    root = _Follower().follow(pickle)
    sizes: dict[int, int] = {}
    if _expanded_size(root, sizes, 0) > _MAX_REPETITION * len(sizes):
        raise UserError("its values repeat each other too often: damaged, or hostile")


def _expanded_size(item: _Item, sizes: dict[int, int], depth: int) -> int:
    """How many values a visit of `item` meets, with repetitions. Raises UserError for deep nesting, and for cycles."""
    if depth > _MAX_NESTING:
        raise UserError("its values are nested too deeply: damaged, or hostile")
    if id(item) not in sizes:
        sizes[id(item)] = 1 + sum(_expanded_size(part, sizes, depth + 1) for part in item.parts)
    return sizes[id(item)]


class _Follower:
    """Follows the stack and the memo of an unpickler."""

    def __init__(self) -> None:
        self._stack: list[_Item] = []
        self._outer: list[list[_Item]] = []  # the stacks below each mark
        self._memo: dict[int, _Item] = {}
        self._actions: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(_ATOMS, self._push_atom),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), self._memoize),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda number: self._stack.append(self._memo[number])),
            "PROTO": lambda _: None,
            "GLOBAL": self._push_global,
            "MARK": self._mark,
            "TUPLE": lambda _: self._push("tuple", self._pop_mark()),
            "APPEND": lambda _: self._extend("list", [self._stack.pop()]),
            "APPENDS": lambda _: self._extend("list", self._pop_mark()),
            "SETITEM": lambda _: self._set_items(self._pop(2)),
            "SETITEMS": lambda _: self._set_items(self._pop_mark()),
            "BINPERSID": lambda _: self._push_storage(),
            "REDUCE": lambda _: self._call(_REDUCED),
            "NEWOBJ": lambda _: self._call(_CREATED),
            "BUILD": lambda _: self._build(),
        }

    def follow(self, pickle: IO[bytes]) -> _Item:
        """The value of the next pickle."""
        for opcode, argument, _ in pickletools.genops(pickle):
            name = opcode.name
            if name == "STOP":
                return self._stack.pop()
            if name in _EMPTY:
                self._push(_EMPTY[name], [])
            elif name in _TUPLES:
                self._push("tuple", self._pop(_TUPLES[name]))
            elif name in self._actions:
                self._actions[name](argument)
            else:
                raise UserError(f"damaged, or not a file of torch.save: the opcode {name}")
        raise ValueError("no end")

    def _push(self, kind: str, parts: list[_Item]) -> None:
        self._stack.append(_Item(kind, parts=parts))

    def _push_atom(self, value: object) -> None:
        self._stack.append(_Item("atom", value))

    def _push_global(self, name: str) -> None:
        if name not in (*_REDUCED, *_CREATED) and _STORAGE_OR_DTYPE.fullmatch(name) is None:
            shown = name.replace(" ", ".")
            raise UserError(
                f"it holds an object of {shown:.100}, which nmtkit does not load: save the weights and options alone"
            )
        self._stack.append(_Item("global", name))

    def _pop(self, count: int) -> list[_Item]:
        if len(self._stack) < count:
            raise IndexError("empty stack")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _mark(self, _: object) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[_Item]:
        items, self._stack = self._stack, self._outer.pop()
        return items

    def _memoize(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _extend(self, kind: str, items: list[_Item]) -> None:
        target = self._stack[-1]
        if target.kind != kind:
            raise TypeError(f"{target.kind} is not a {kind}")
        target.parts += items

    def _set_items(self, items: list[_Item]) -> None:
        """Refuses keys whose hashes could take forever: containers, and integers that can have equal hashes."""
        for key in items[::2]:
            if key.kind != "atom" or (isinstance(key.content, int) and abs(key.content) > _MAX_KEY):
                raise UserError("a key of its dicts is neither a string nor a small number: damaged, or hostile")
        target = self._stack[-1]
        if target.kind not in ("dict", *_results(_ORDERED_DICT, DEFAULT_DICT)):
            raise TypeError(f"{target.kind} is not a dict")
        target.parts += items

    def _push_storage(self) -> None:
        """A storage by its kind, key, device and size, and in the old format its part of another one."""
        identity = self._stack.pop()
        values = [part for part in identity.parts if part.kind != "tuple"]
        values += [part for view in identity.parts if view.kind == "tuple" for part in view.parts]
        if identity.kind != "tuple" or any(value.kind not in ("atom", "global") for value in values):
            raise TypeError("not the identity of a storage")
        self._push("storage", [])

    def _call(self, allowed: tuple[str, ...]) -> None:
        """Push the result of a call. Only the calls that `torch.save` writes are allowed, with its arguments."""
        function, arguments = self._pop(2)
        name = function.content
        if function.kind != "global" or name not in allowed or arguments.kind != "tuple":
            raise UserError(f"it calls {name!s:.60}, which nmtkit does not allow: save the weights and options alone")
        parts = arguments.parts
        if name in (_ORDERED_DICT, _NAMESPACE) and parts:
            raise UserError(f"it calls {name} with arguments, which nmtkit does not allow")
        if name == _ENCODE and [parts[0].kind, parts[1].content] != ["atom", "latin1"]:
            raise UserError("it encodes text, which nmtkit does not allow")
        self._push(f"result of {name}", parts)

    def _build(self) -> None:
        """Set attributes or the state of an object. `load_pickled` drops the parent of a node, which may be a cycle."""
        state = self._stack.pop()
        target = self._stack[-1]
        if target.kind in _results(*CONFIG_NODES) and state.kind == "dict":
            names, values = state.parts[::2], state.parts[1::2]
            target.parts += [value for name, value in zip(names, values, strict=True) if name.content != _PARENT]
        elif target.kind in _results(_ORDERED_DICT, _NAMESPACE, *IGNORED):
            target.parts.append(state)
        else:
            raise TypeError(f"{target.kind} has no state")


def _results(*names: str) -> list[str]:
    """The kinds of items that calls of `names` make."""
    return [f"result of {name}" for name in names]
