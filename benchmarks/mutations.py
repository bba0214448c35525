"""Mutants of source files: what Cosmic Ray's operators change, apart from what no test can notice."""

import ast
import difflib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ALIKE = (
    frozenset({"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}),
    frozenset({"LShift", "RShift"}),
    frozenset({"BitOr", "BitAnd", "BitXor"}),
    frozenset({"Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"}),
    frozenset({"Is", "IsNot"}),
)
RULES = """\
Left out: annotations and aliases of types, what stands inside `raise`, `if TYPE_CHECKING`, lines with `# pragma`,
`@override`, `@dataclass` of a class that adds no field to its parent's;
operators of another kind (+ becomes * or //, never <<; == becomes <, never `is`), since most of these fail at once;
what does not compile, and what compiles to the same code. The operators never change text, so docstrings stay."""

Position = tuple[int, int]  # line from 1, column from 0


@dataclass(frozen=True)
class Place:
    """Where an operator changes a file: at which of the places that it can change, and on which line."""

    path: Path
    operator: str
    occurrence: int
    line: int


@dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    place: Place
    source: str
    code: str

    @property
    def definition(self) -> str:
        """The dotted name of the function or class that changes; "" outside of all."""
        return ".".join(_definitions_at(ast.parse(self.source), self.place.line))

    @property
    def change(self) -> tuple[str, str]:
        """The lines that change, before and after."""
        diff = list(difflib.ndiff(self.source.splitlines(), self.code.splitlines()))
        before, after = (" ".join(line[2:].strip() for line in diff if line.startswith(sign)) for sign in "-+")
        return before, after


def draw(paths: Iterable[Path], sample: int, seed: int) -> list[Mutant]:
    """A random sample of the mutants of some files, in random order; all of them where there are fewer."""
    places = [place for path in paths for place in places_of(path)]
    random.Random(seed).shuffle(places)
    mutants: list[Mutant] = []
    for place in places:
        if len(mutants) == sample:
            break
        mutant = mutant_at(place)
        if mutant is not None:
            mutants.append(mutant)
    return mutants


def places_of(path: Path) -> Iterator[Place]:
    """Every place where an operator changes a file, by the rules."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = path.read_text()
    tree, ignored = get_ast(source), ignored_spans(source)
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments() or not is_alike(name):  # those with arguments replace variables at random
            continue
        spans = (span for node in ast_nodes(tree) for span in operator().mutation_positions(node))
        for occurrence, (start, _) in enumerate(spans):
            if not any(first <= start < last for first, last in ignored):
                yield Place(path, name, occurrence, start[0])


def mutant_at(place: Place) -> Mutant | None:
    """The mutant at a place; None where it does not compile or compiles to the same code."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = place.path.read_text()
    code = mutate_code(source, get_operator(place.operator)(), place.occurrence)
    try:
        is_same = code is None or ast.dump(ast.parse(code)) == ast.dump(ast.parse(source))
    except SyntaxError:
        return None
    return None if is_same else Mutant(place, source, code)


def is_alike(operator: str) -> bool:
    """Whether an operator's name, such as core/ReplaceBinaryOperator_Add_Mul, replaces by something of its kind."""
    name, _, kinds = operator.partition("_")
    pair = set(kinds.split("_"))
    return not name.endswith(("BinaryOperator", "ComparisonOperator")) or any(pair <= group for group in ALIKE)


def ignored_spans(source: str) -> list[tuple[Position, Position]]:
    """The parts of a file, from a position up to another, in which a change does not matter."""
    lines = source.splitlines()

    def position(line: int, byte: int) -> Position:
        return line, len(lines[line - 1].encode()[:byte].decode())

    spans = [((n, 0), (n + 1, 0)) for n, line in enumerate(lines, 1) if "# pragma" in line]
    tree = ast.parse(source)
    spans += [((node.lineno, 0), (node.lineno + 1, 0)) for node in _ignored_decorators(tree)]
    for node in _ignored_nodes(tree):
        end_line, end_byte = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        spans.append((position(node.lineno, node.col_offset), position(end_line, end_byte)))
    return spans


def _definitions_at(tree: ast.AST, line: int) -> Iterator[str]:
    """The names of the definitions around a line, decorators included, from the outermost in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min((node.lineno, *(decorator.lineno for decorator in node.decorator_list)))
            if first <= line <= (node.end_lineno or first):
                yield node.name
                yield from _definitions_at(node, line)


def _ignored_decorators(tree: ast.Module) -> Iterator[ast.expr]:
    """Decorators that change nothing: `@override`, and `@dataclass` of a class without fields of its own."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        kinds = [ast.unparse(statement.annotation) for statement in node.body if isinstance(statement, ast.AnnAssign)]
        has_fields = not all(kind.startswith("ClassVar") for kind in kinds)
        for decorator in node.decorator_list:
            name = ast.unparse(decorator).partition("(")[0]
            if name == "override" or (name == "dataclass" and isinstance(node, ast.ClassDef) and not has_fields):
                yield decorator


def _ignored_nodes(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(annotation=ignored) | ast.arg(annotation=ast.expr() as ignored):
                yield ignored
            case ast.FunctionDef(returns=ast.expr() as ignored) | ast.Raise(exc=ast.expr() as ignored):
                yield ignored
            case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                yield node
    for statement in tree.body:
        match statement:
            case ast.Assign(value=ast.BinOp(op=ast.BitOr())):
                yield statement
