"""Walking the tree of a filter without recursion.

A tree may come from anywhere: the parsers keep theirs within `Limits`, a program that builds one
by hand may not. Whatever recurses over a tree (hashing it and comparing it included, which happens
in C, where a stack that overflows takes the process with it) has to know its height first.

Height is counted as the parser counts it: an attribute or a literal has height 1.
"""

from collections.abc import Iterator, Sequence

from anabranch.model.language.expression import (
    And,
    Arithmetic,
    Attribute,
    Comparison,
    Expression,
    In,
    IsNull,
    Like,
    Negative,
    Not,
    Or,
    Positive,
)


def children(expression: Expression) -> tuple[Expression, ...]:
    """The nodes directly below."""
    if isinstance(expression, And | Or):
        return expression.items
    if isinstance(expression, Comparison | Arithmetic):
        return (expression.left, expression.right)
    if isinstance(expression, In):
        return (expression.operand, *expression.items)
    if isinstance(expression, Like | IsNull | Negative | Positive):
        return (expression.operand,)
    return (expression.item,) if isinstance(expression, Not) else ()


def measure(expression: Expression, height_max: int) -> tuple[int, bool]:
    """The height of the tree, and whether it reads no attribute.

    The walk stops one level above `height_max`; the tree is too high then, whatever it reads.
    """
    level: Sequence[Expression] = (expression,)
    height = 0
    constant = True
    while level and height <= height_max:
        height += 1
        below: list[Expression] = []
        for node in level:
            if type(node) is Attribute:
                constant = False
            else:
                below += children(node)
        level = below
    return height, constant


def nodes_of(expression: Expression) -> Iterator[Expression]:
    """Every node of the tree, in no particular order."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(children(node))


def attribute_names(expression: Expression) -> tuple[str, ...]:
    """The names of all attributes that the expression reads, ascending."""
    nodes = nodes_of(expression)
    return tuple(sorted({node.name for node in nodes if isinstance(node, Attribute)}))


def is_constant(expression: Expression) -> bool:
    """Whether the expression reads no attribute."""
    return not any(isinstance(node, Attribute) for node in nodes_of(expression))
