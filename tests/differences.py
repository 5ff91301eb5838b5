"""Say how far apart the arrays are that a failed assertion compared: pytest prints them, and of large ones only the corners."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from typing import Any

# What compares two arrays, and its defaults of `rtol` and `atol`.
EXACT, CLOSE = (0.0, 0.0), (1e-5, 1e-8)
COMPARES = {"torch.equal": EXACT, "np.array_equal": EXACT, "torch.allclose": CLOSE, "np.allclose": CLOSE}


def explain(error: BaseException) -> str:
    """Return a line per pair of arrays that the failed `assert` compared and that differ; "" if there is none.

    The operands are evaluated once more, in the frame that failed.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not isinstance(error, AssertionError):
        return ""
    frame = trace.tb_frame
    names = {**frame.f_globals, **frame.f_locals}
    lines = []
    for node in _asserts("".join(linecache.getlines(frame.f_code.co_filename)), trace.tb_lineno):
        for compared in _compared(node):
            try:
                code = compile(ast.fix_missing_locations(ast.Expression(compared)), "<compared>", "eval")
                pairs, rtol, atol = eval(code, names)
                lines += [line for left, right in pairs if (line := difference(left, right, rtol, atol))]
            except Exception as why:  # what cannot be evaluated twice is left as pytest printed it
                lines.append(f"{ast.unparse(compared)}: not compared again ({type(why).__name__}: {why})")
    return "\n".join(lines)


def difference(left: Any, right: Any, rtol: float = 0.0, atol: float = 0.0) -> str:
    """Return what differs between two arrays: form, how many values, the largest difference and where; "" if nothing."""
    import numpy as np

    left, right = (one.detach().cpu() if hasattr(one, "detach") else np.asarray(one) for one in (left, right))
    forms = [f"{tuple(one.shape)} {one.dtype}" for one in (left, right)]
    if tuple(left.shape) != tuple(right.shape):
        return f"left is {forms[0]}, right is {forms[1]}"
    a, b = (np.asarray(one.double() if hasattr(one, "double") else one).astype(np.float64) for one in (left, right))
    far = np.where(a == b, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
    wrong = far > atol + rtol * np.nan_to_num(np.abs(b))
    if not wrong.any():
        return ""
    at = np.unravel_index(int(np.argmax(np.where(wrong, far, -1.0))), far.shape)
    bound = f"; allowed {atol:g} + {rtol:g} x right" if rtol or atol else ""
    place = f" at {[int(one) for one in at]}" if far.ndim else ""
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} values differ ({forms[0]}, {forms[1]}); the largest difference is "
        f"{far[at]:.6g}{place}: left {a[at]:.9g}, right {b[at]:.9g}{bound}"
    )


def file_differences(left: object, right: object) -> list[str]:
    """Return what differs between two groups {name: bytes} of safetensors files, five tensors of each at most; [] for others."""
    from safetensors.torch import load

    if not all(isinstance(one, dict) and _are_tensor_files(one) for one in (left, right)):
        return []
    assert isinstance(left, dict) and isinstance(right, dict)
    lines = [f"only on one side: {name}" for name in sorted(left.keys() ^ right.keys())]
    for name in sorted(left.keys() & right.keys()):
        if left[name] == right[name]:
            continue
        before, after = load(left[name]), load(right[name])
        lines += [f"{name}: only on one side: {tensor}" for tensor in sorted(before.keys() ^ after.keys())]
        found = {tensor: difference(before[tensor], after[tensor]) for tensor in sorted(before.keys() & after.keys())}
        said = [f"{name}: {tensor}: {text}" for tensor, text in found.items() if text]
        lines += said[:5] or [f"{name}: the same tensors, but another header or order"]
        if len(said) > 5:
            lines.append(f"{name}: {len(said) - 5} more of {len(found)} tensors differ")
    return lines


def _are_tensor_files(files: dict[object, object]) -> bool:
    named = all(isinstance(name, str) and name.endswith(".safetensors") for name in files)
    return bool(files) and named and all(isinstance(data, bytes) for data in files.values())


def _asserts(source: str, line: int) -> Iterator[ast.AST]:
    """Yield the assertion of this line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or node.lineno):
            yield node.test


def _compared(test: ast.AST) -> Iterator[ast.expr]:
    """Yield, for each comparison of arrays, an expression: (list of pairs, rtol, atol)."""
    within = {id(one) for node in ast.walk(test) if isinstance(node, ast.GeneratorExp) for one in ast.walk(node.elt)}
    for node in ast.walk(test):
        if isinstance(node, ast.GeneratorExp) and (pair := _pair(node.elt)) is not None:
            yield _tuple(ast.ListComp(pair[0], node.generators), *pair[1:])
        elif id(node) not in within and (pair := _pair(node)) is not None:
            yield _tuple(ast.List([pair[0]], ast.Load()), *pair[1:])


def _pair(node: ast.AST) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """Return the operands of torch.equal(a, b) and its like, or of (a == b).all(), as one expression, and rtol and atol."""
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func)
    if name in COMPARES and len(node.args) >= 2:
        bounds: dict[str | None, ast.expr] = dict(zip(("rtol", "atol"), map(ast.Constant, COMPARES[name])))
        bounds |= dict(zip(("rtol", "atol"), node.args[2:])) | {one.arg: one.value for one in node.keywords}
        return _tuple(*node.args[:2]), bounds["rtol"], bounds["atol"]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "all" and isinstance(node.func.value, ast.Compare):
        compare = node.func.value
        if isinstance(compare.ops[0], ast.Eq) and len(compare.ops) == 1:
            return _tuple(compare.left, *compare.comparators), ast.Constant(0.0), ast.Constant(0.0)
    return None


def _tuple(*parts: ast.expr) -> ast.Tuple:
    return ast.Tuple(list(parts), ast.Load())
