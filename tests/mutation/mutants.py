"""Mutants of a module: copies of its source that differ in one operator, constant, condition, result or function.

Strings, annotations, decorators, raised errors and blocks for type checkers are left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
BITWISE: dict[type[ast.operator], type[ast.operator]] = {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}

PAIRS_OF_FUNCTIONS = (
    ("minimum", "maximum"),
    ("fmin", "fmax"),
    ("nanmin", "nanmax"),
    ("min", "max"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("floor", "ceil"),
    ("cumsum", "cumprod"),
    ("isnan", "isfinite"),
    ("log", "log1p"),
    ("exp", "expm1"),
)
FUNCTIONS = {one: other for pair in PAIRS_OF_FUNCTIONS for one, other in (pair, pair[::-1])}
BUILTINS = {"min", "max", "any", "all"}

DROPPED_KEYWORDS = {"axis", "initial", "keepdims", "key", "minlength", "out", "reverse", "side", "where"}
"""Arguments without which a call is still valid."""
KEYWORDS_WITHOUT_RESULT = {"compare", "copy", "frozen", "kw_only", "maxsize", "repr", "slots", "stacklevel", "strict"}
"""Arguments that change no result of a correct program: their values are not mutated."""


@dataclass(frozen=True, order=True)
class Mutant:
    """One change of a source: the bytes from `start` to `end` become `replacement`. `line` counts from 1."""

    start: int
    end: int
    replacement: str
    original: str
    kind: str
    line: int

    def applied_to(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement.encode() + source[self.end :]


def mutants_of(source: bytes) -> list[Mutant]:
    """All mutants of this source, in the order of their places.

    >>> [(mutant.kind, mutant.original, mutant.replacement) for mutant in mutants_of(b"a = b + 1")]
    [('arithmetic', 'b + 1', '(b - 1)'), ('constant', '1', '2')]
    """
    sites = _Sites(source)
    sites.visit(ast.parse(source))
    return sorted(set(sites.found))


class _Sites(ast.NodeVisitor):
    def __init__(self, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._source = source
        self._line_starts = list(accumulate(map(len, source.splitlines(keepends=True)), initial=0))
        self._returns_a_value = [False]

    def _offer(self, kind: str, node: ast.expr | ast.stmt, mutated: ast.AST | str) -> None:
        start, end = self._place(node)
        text = mutated if isinstance(mutated, str) else ast.unparse(mutated)
        if isinstance(mutated, ast.expr):
            text = f"({text})"
        self.found.append(Mutant(start, end, text, self._text(node), kind, node.lineno))

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._place(node)
        return self._source[start:end].decode()

    def _place(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Start and end in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._line_starts[node.lineno - 1] + node.col_offset,
            self._line_starts[node.end_lineno - 1] + node.end_col_offset,
        )

    # What is left alone

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        pass

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    # Functions and what they return

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        returns_none = isinstance(node.returns, ast.Constant) and node.returns.value is None
        self._returns_a_value.append(not returns_none)
        for statement in node.body:
            self.visit(statement)
        self._returns_a_value.pop()

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        if self._returns_a_value[-1] and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._offer("return", node.value, "None")
        self.visit(node.value)

    # Conditions

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._negate(condition)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        """Comparisons and `not` have their own mutants that do the same."""
        compared = isinstance(test, ast.Compare) and len(test.ops) == 1
        if not compared and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            self._offer("negation", test, ast.UnaryOp(ast.Not(), test))

    # Operators

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.Invert):
            self._offer("negation", node, node.operand)
        elif isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            self._constant(node, ast.literal_eval(node))
            return
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._offer("logic", node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for kind, exchanged in (("boundary", BOUNDARIES), ("comparison", COMPARISONS)):
            for index, operator in enumerate(node.ops):
                if type(operator) in exchanged:
                    operators = [*node.ops[:index], exchanged[type(operator)](), *node.ops[index + 1 :]]
                    self._offer(kind, node, ast.Compare(node.left, operators, node.comparators))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC:
            self._offer("arithmetic", node, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
        elif type(node.op) in BITWISE and not _is_union(node):
            self._offer("logic", node, ast.BinOp(node.left, BITWISE[type(node.op)](), node.right))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        for kind, exchanged in (("arithmetic", ARITHMETIC), ("logic", BITWISE)):
            if type(node.op) in exchanged:
                self._offer(kind, node, ast.AugAssign(node.target, exchanged[type(node.op)](), node.value))
        self.generic_visit(node)

    # Constants and slices

    def visit_Constant(self, node: ast.Constant) -> None:
        self._constant(node, node.value)

    def _constant(self, node: ast.expr, value: object) -> None:
        if isinstance(value, bool | int | float):
            self._offer("constant", node, repr(_changed(value)))

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound in (node.lower, node.upper):
            if bound is None:
                continue
            if _is_number(bound):
                number = ast.literal_eval(bound)
                self._offer("slice", bound, repr(number - 1 if number < 0 else number + 1))
            else:
                self._offer("slice", bound, ast.BinOp(bound, ast.Add(), ast.Constant(1)))
                self.visit(bound)
        if node.step is not None:
            self.visit(node.step)

    # Functions that are called

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and _is_builtin(node.func):
            self._offer("function", node.func, FUNCTIONS[node.func.id])
        elif isinstance(node.func, ast.Attribute) and not _is_numpy(node.func):
            self._exchange(node.func)
        for keyword in node.keywords:
            if keyword.arg in DROPPED_KEYWORDS or (keyword.arg == "default" and _is_builtin(node.func)):
                rest = [other for other in node.keywords if other is not keyword]
                self._offer("argument", node, ast.Call(node.func, node.args, rest))
        typed = isinstance(node.func, ast.Name) and node.func.id in {"isinstance", "issubclass", "cast", "TypeVar"}
        for child in (node.func, *(node.args[:1] if typed else node.args)):
            self.visit(child)
        for keyword in node.keywords:
            if keyword.arg not in KEYWORDS_WITHOUT_RESULT:
                self.visit(keyword.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if _is_numpy(node):
            self._exchange(node)
        self.generic_visit(node)

    def _exchange(self, node: ast.Attribute) -> None:
        if node.attr in FUNCTIONS:
            self._offer("function", node, self._text(node).removesuffix(node.attr) + FUNCTIONS[node.attr])


def _is_builtin(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in BUILTINS


def _is_numpy(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"np", "math"}


def _is_number(node: ast.expr) -> bool:
    operand = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(operand, ast.Constant) and isinstance(operand.value, int | float)


def _is_union(node: ast.BinOp) -> bool:
    """Whether this looks like a union of types or of dictionaries."""
    return any(isinstance(side, ast.Dict) or _looks_like_a_type(side) for side in _operands(node))


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _operands(node.left)
        yield from _operands(node.right)
    else:
        yield node


def _looks_like_a_type(node: ast.expr) -> bool:
    name = node.value if isinstance(node, ast.Subscript) else node
    text = ast.unparse(name).rpartition(".")[2]
    builtin = text in {"None", "bool", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"}
    return builtin or (isinstance(name, ast.Name | ast.Attribute) and text[:1].isupper() and not text.isupper())


def _changed(value: float) -> float:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value * 2.0 if value else 1.0
