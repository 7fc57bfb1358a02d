"""Translate a torch-level FX graph to a :class:`Program`, with every target by its public name."""

from __future__ import annotations

import builtins
import functools
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx, nn

from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.programs.ir.program import TAKEN, Form, Input, Program, Ref, Statement, make_input_name, map_leaves
from fuzzcompile.run.tensors import is_plain

# ATen operators in public torch code: ``aten.mul.Tensor`` is ``*``, ``aten.view.default`` a method.

Call = tuple[Form, str, Sequence[object], Mapping[str, object]]
_BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "mm": "@", "bmm": "@", "matmul": "@",
           "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "bitwise_and": "&",
           "bitwise_or": "|"}  # fmt: skip
_UNARY = {"neg": "-x", "bitwise_not": "~x", "logical_not": "~x"}
_RENAMED = {"_softmax": "softmax", "_log_softmax": "log_softmax", "_unsafe_view": "reshape", "alias": "view_as"}
# Written as methods, though torch has functions of most of these names too.
_METHODS = (
    "view", "permute", "expand", "reshape", "transpose", "unsqueeze", "squeeze", "select", "t", "clone", "detach",
    "sum", "contiguous", "new_zeros", "new_ones", "new_full", "new_empty", "copy_", "as_strided", "masked_fill",
    "flatten", "diagonal", "unfold",
)  # fmt: skip
# Arguments that are redundant on one device.
_PLAIN = ("layout", "device", "pin_memory", "memory_format", "implicit", "non_blocking")
_END = sys.maxsize


def _public_form(operator: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> Call:
    """The call of an operator by torch's public names; with an empty name if it has none."""
    name = operator._schema.name.partition("::")[2]
    kept = {key: value for key, value in kwargs.items() if key not in _PLAIN and value is not None}
    if operator.namespace == "prims":
        return _prim(name, args, kept)
    if operator.namespace != "aten":
        return "function", "", args, kwargs
    if name in _BINARY and len(args) == 2 and not kept:
        return "operator", _BINARY[name], args, {}
    if name in _UNARY and len(args) == 1:
        return "operator", _UNARY[name], args, {}
    if name in ("_softmax", "_log_softmax"):
        return "function", f"torch.{_RENAMED[name]}", args[:2], {}
    if name == "alias":
        return "method", "view_as", (args[0], args[0]), {}
    if name == "_to_copy":
        return "method", "to", (args[0], *kept.values()), {}
    if name == "sym_size":
        return "method", "size", args, {}
    if name == "slice":
        return _slice(args)
    indices = args[1] if len(args) > 1 and isinstance(args[1], Sequence) else ()
    if name == "index" and len(args) == 2:
        taken = tuple(slice(None) if part is None else part for part in indices)
        return "getitem", "getitem", (args[0], taken if len(taken) > 1 else taken[0]), {}
    if name.startswith("index_put") and None in indices:  # which torch.index_put does not take
        return "function", "", args, kept
    name = _RENAMED.get(name, name)
    if name in _METHODS:
        return "method", name, args, kept
    if callable(getattr(torch, name, None)):
        return "function", f"torch.{name}", args, kept
    if callable(getattr(torch.nn.functional, name, None)):
        return "function", f"F.{name}", args, kept
    return ("method", name, args, kept) if hasattr(torch.Tensor, name) else ("function", "", args, kwargs)


def _prim(name: str, args: Sequence[object], kept: Mapping[str, object]) -> Call:
    if name == "convert_element_type":
        return "method", "to", args, {}
    if name == "fma" and len(args) == 3:
        return "function", "torch.addcmul", (args[2], *args[:2]), {}
    start, step = kept.get("start", 0), kept.get("step", 1)
    if name == "iota" and isinstance(start, int) and isinstance(step, int):
        dtype = {} if kept.get("dtype") in (None, torch.int64) else {"dtype": kept["dtype"]}
        if (start, step) == (0, 1):
            return "function", "torch.arange", args[:1], dtype
        if isinstance(args[0], int):
            return "function", "torch.arange", (start, start + args[0] * step, step), dtype
    return "function", "", args, kept


def _slice(args: Sequence[object]) -> Call:
    tensor, dimension, start, end, step = [*args, None, None, None, None][:5]
    dimension = dimension or 0
    if not isinstance(dimension, int) or dimension < 0:
        return "function", "", args, {}
    end = None if isinstance(end, int) and end >= _END else end
    part = slice(start or None, end, None if step == 1 else step)
    index = (*(slice(None) for _ in range(dimension)), part)
    return "getitem", "getitem", (tensor, index if len(index) > 1 else part), {}


# Graph inputs that are sizes of other inputs.


def _find_size_inputs(graph: fx.Graph) -> dict[fx.Node, tuple[fx.Node, int]]:
    """For each input that is a symbolic size, the tensor input and dimension that have this size."""
    places = [node for node in graph.nodes if node.op == "placeholder"]
    values = {node: node.meta.get("example_value", node.meta.get("val")) for node in places}
    tensors = [(node, value) for node, value in values.items() if isinstance(value, torch.Tensor)]
    sizes: dict[fx.Node, tuple[fx.Node, int]] = {}
    for node, size in values.items():
        if not isinstance(size, torch.SymInt):
            continue
        for tensor, value in tensors:
            # As text: comparing symbols would make guards.
            at = next((d for d, length in enumerate(value.shape) if str(length) == str(size)), None)
            if at is not None:
                sizes[node] = (tensor, at)
                break
    return sizes


class Untranslatable(FuzzcompileError):
    """A graph holds an operation or value that public torch code cannot express."""


# Python's operators by the name of their function.
OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "matmul": "@", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "eq": "==", "ne": "!=", "neg": "-x", "invert": "~x", "pos": "+x", "iadd": "+=", "isub": "-=",
    "imul": "*=", "itruediv": "/=", "ifloordiv": "//=", "imod": "%=", "ipow": "**=", "iand": "&=", "ior": "|=",
    "ixor": "^=", "imatmul": "@=",
}  # fmt: skip
_NAMESPACES = ("torch", "F", "torch.special", "torch.linalg", "torch.fft", "torch.nn.utils.rnn", "torch.sparse")
# Dynamo's checks and hints, which compute nothing.
_SILENT = ("_assert", "_check", "_assert_async", "_assert_scalar", "lazy_load_decompositions", "sym_constrain_range",
           "_log_api_usage_once")  # fmt: skip
# Private arguments of torch's Python functions.
_PRIVATE_ARGUMENTS = ("_stacklevel",)
_CONTEXTS = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled", "_sdpa_kernel", "_backend_from_string")
_ATTENTION = "torch.nn.attention"
_INLINED = ("wrap", "tag_activation_checkpoint", "inline_asm")


def translate_graph(
    module: fx.GraphModule, inputs: Sequence[object], parameters: Sequence[bool], settings: Mapping[str, object]
) -> Program:
    """The graph as a program, with ``inputs`` as recorded values; Untranslatable names the node that forbids it."""
    translation = _Translation(_find_size_inputs(module.graph))
    given = iter(zip(inputs, parameters, strict=True))
    outputs: object = None
    for node in module.graph.nodes:
        if node.op == "placeholder":
            value, parameter = next(given)
            translation.placeholder(node, value, parameter)
        elif node.op == "output":
            outputs = translation.argument(node.args[0])
        else:
            translation.node(node, module)
    if isinstance(outputs, (tuple, list)) and len(outputs) == 1:
        outputs = outputs[0]
    if translation.blocks:
        raise Untranslatable("a context is entered and never left")
    program = Program(tuple(translation.inputs), tuple(translation.statements), outputs, dict(settings))
    return program.without_dead_code()


class _Translation:
    def __init__(self, sizes: Mapping[fx.Node, tuple[fx.Node, int]]) -> None:
        self.sizes = sizes
        self.waiting: dict[fx.Node, list[fx.Node]] = {}
        self.inputs: list[Input] = []
        self.statements: list[Statement] = []
        self.values: dict[fx.Node, object] = {}
        self.names: set[str] = set()
        self.blocks: list[tuple[str, object]] = []  # the kind of each open block, and what ends it
        self.prefix = ""

    def placeholder(self, node: fx.Node, value: object, parameter: bool) -> None:
        if not isinstance(value, torch.Tensor):
            self.values[node] = value  # a number, with its value in the captured call
            if node in self.sizes:
                self.waiting.setdefault(self.sizes[node][0], []).append(node)
            return
        if not is_plain(value) or value.layout != torch.strided or value.is_quantized:
            raise Untranslatable(f"input {node.name} is no plain strided tensor")
        name = self._free(make_input_name(str(node.target)))
        self.inputs.append(Input.from_tensor(name, value, parameter=parameter))
        self.values[node] = Ref(name)
        for size in self.waiting.pop(node, ()):  # a dynamic size is read off the input that has it
            read = self._free(size.name)
            self.statements.append(Statement(read, "method", "size", (Ref(name), self.sizes[size][1])))
            self.values[size] = Ref(read)

    def node(self, node: fx.Node, module: fx.GraphModule) -> None:
        if node.op == "get_attr":
            self._attribute(node, module)
        elif node.op == "call_method":
            self._add(node, "method", str(node.target), node.args, node.kwargs)
        elif node.op == "call_function":
            self._function(node, module)
        else:
            raise Untranslatable(f"node {node.name} calls the module {node.target}")

    def _attribute(self, node: fx.Node, module: fx.GraphModule) -> None:
        holder: object = module
        value = functools.reduce(getattr, str(node.target).split("."), holder)
        if isinstance(value, fx.GraphModule):
            self.values[node] = value
            return
        if not isinstance(value, torch.Tensor):
            raise Untranslatable(f"node {node.name} is a {type(value).__name__}")
        self.placeholder(node, value.detach().clone(), isinstance(value, nn.Parameter))

    def _function(self, node: fx.Node, module: fx.GraphModule) -> None:
        target = node.target
        assert callable(target)
        name = str(getattr(target, "__name__", ""))
        if name in _SILENT:
            return
        if target is operator.getitem and not isinstance(node.args[0], fx.Node):
            raise Untranslatable(f"node {node.name} indexes a constant")
        if target is operator.getitem:
            self._add(node, "getitem", name, node.args, {})
        elif target is operator.setitem:
            self._add(node, "setitem", name, node.args, {})
        elif target is getattr:
            self._add(node, "attribute", str(node.args[1]), node.args[:1], {})
        elif getattr(target, "__module__", "") in ("_operator", "operator") and name in OPERATORS:
            self._add(node, "operator", OPERATORS[name], node.args, {})
        elif name in _CONTEXTS:
            self._context(node, name)
        elif str(getattr(target, "namespace", "")) == "higher_order" or (
            type(target).__module__.startswith(("torch._higher_order_ops", "torch._ops"))
            and not isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
        ):
            self._inline(node, module)
        elif isinstance(target, torch._ops.OpOverload):
            form, text, args, kwargs = _public_form(target, node.args, node.kwargs)
            self._add(node, form, text or find_public_name(target), args, kwargs)
        else:
            self._add(node, "function", find_public_name(target), node.args, node.kwargs)

    def _context(self, node: fx.Node, name: str) -> None:
        """Regions under autocast, another grad mode or chosen attention kernels, as ``with`` blocks.

        The graph ends the last two by setting the earlier state again.
        """
        if name == "_enter_autocast":
            device, dtype, enabled, *_ = node.args
            text = f'torch.autocast("{device}"' + (f", dtype={dtype}" if dtype is not None else "")
            self._enter(name, node, text + (")" if enabled else ", enabled=False)"))
        elif name == "_exit_autocast":
            if not self.blocks or self.blocks[-1] != ("_enter_autocast", node.args[0]):
                raise Untranslatable("contexts that are not nested")
            self._leave()
        elif name == "_set_grad_enabled":
            if self.blocks and self.blocks[-1] == (name, node.args[0]):
                self._leave()
            else:
                self._enter(name, not node.args[0], f"torch.{'enable_grad' if node.args[0] else 'no_grad'}()")
        elif name == "_backend_from_string":
            self.values[node] = str(node.args[0])
        elif self.blocks and self.blocks[-1][0] == name:
            self._leave()
        else:
            allowed = self.argument(node.args[0])
            assert isinstance(allowed, tuple | list)
            chosen = [f"{_ATTENTION}.SDPBackend.{backend}" for backend in allowed]
            backends = chosen[0] if len(chosen) == 1 else f"[{', '.join(chosen)}]"
            self._enter(name, None, f"{_ATTENTION}.sdpa_kernel({backends})")

    def _enter(self, kind: str, ends: object, text: str) -> None:
        self.blocks.append((kind, ends))
        self.statements.append(Statement(self._free("context"), "enter", text))

    def _leave(self) -> None:
        self.blocks.pop()
        self.statements.append(Statement(self._free("context"), "exit", ""))

    def _inline(self, node: fx.Node, module: fx.GraphModule) -> None:
        name = str(getattr(node.target, "__name__", node.target))
        bodies = [a for a in node.args if isinstance(a, fx.Node) and isinstance(self.values.get(a), fx.GraphModule)]
        if not name.startswith(_INLINED) or len(bodies) != 1:
            raise Untranslatable(f"node {node.name} calls the higher-order operator {name}")
        body = self.values[bodies[0]]
        assert isinstance(body, fx.GraphModule)
        given = [a for a in node.args if a is not bodies[0]]
        places = [n for n in body.graph.nodes if n.op == "placeholder"]
        if len(places) != len(given):
            raise Untranslatable(f"node {node.name} gives its body other arguments than it takes")
        for place, value in zip(places, given, strict=True):
            self.values[place] = self.argument(value)
        for inner in body.graph.nodes:
            if inner.op == "output":
                self.values[node] = self.argument(inner.args[0])
            elif inner.op != "placeholder":
                self.node(inner, body)

    def _add(
        self, node: fx.Node, form: Form, target: str, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        source = node.args[0] if node.args else None
        parts = self.values.get(source) if form == "getitem" and isinstance(source, fx.Node) else None
        if isinstance(parts, tuple | list) and isinstance(node.args[1], int | slice):
            self.values[node] = parts[node.args[1]]
            return
        name = self._free(node.name)
        kept = {key: self.argument(value) for key, value in kwargs.items() if key not in _PRIVATE_ARGUMENTS}
        kept = {k: v for k, v in kept.items() if not (isinstance(v, torch.device) and v.type == "cpu")}
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        module = str(stack[-1][0]) if stack else ""
        lines = re.findall(r'File ".*", line (\d+)', str(node.meta.get("stack_trace") or node.stack_trace or ""))
        given = tuple(map(self.argument, args))
        self.statements.append(Statement(name, form, target, given, kept, module, int(lines[-1]) if lines else 0))
        self.values[node] = Ref(name)

    def argument(self, tree: object) -> object:
        """An argument with nodes replaced by their values; what a script cannot hold is refused."""

        def leaf(value: object) -> object:
            if isinstance(value, fx.Node):
                if value not in self.values:
                    raise Untranslatable(f"node {value.name} has no value")
                return self.values[value]
            if value is None or value is Ellipsis or isinstance(value, bool | int | float | complex | str):
                return value
            if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
                return value
            raise Untranslatable(f"an argument of type {type(value).__name__} cannot be written down")

        return map_leaves(leaf, tree)

    def _free(self, name: str) -> str:
        name = re.sub(r"\W", "_", name).strip("_") or "value"
        name = f"x{name}" if name[0].isdigit() else name
        candidate, number = name, 1
        while candidate in self.names or candidate in TAKEN:
            number += 1
            candidate = f"{name}_{number}"
        self.names.add(candidate)
        return candidate


def find_public_name(target: Callable[..., object]) -> str:
    """The text by which a user reaches a function; Untranslatable if torch has no public name for it."""
    name = str(getattr(target, "__name__", ""))
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return f"torch.ops.{str(target).replace('::', '.')}"
    for space in _NAMESPACES:
        holder = torch.nn.functional if space == "F" else functools.reduce(getattr, space.split(".")[1:], torch)
        for known in (name, re.sub(r"^(special|linalg|fft)_", "", name)):
            if known and not known.startswith("_") and getattr(holder, known, None) is target:
                return f"{space}.{known}"
    if getattr(torch._C._nn, name, None) is target and hasattr(torch.nn.functional, name):
        return f"F.{name}"  # a Python function of the same arguments, which dynamo has inlined
    if getattr(math, name, None) is target:
        raise Untranslatable(f"{name} of the module math")
    if getattr(builtins, name, None) is target:
        return name
    if getattr(torch.Tensor, name, None) is target:
        return f"torch.Tensor.{name}"
    raise Untranslatable(f"{getattr(target, '__module__', '?')}.{name or target} is no public function of torch")
