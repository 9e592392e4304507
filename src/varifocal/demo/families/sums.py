"""Printed figures that are added or subtracted in spelled steps (after MathVista)."""

from random import Random

from varifocal.demo.asking import Draft
from varifocal.demo.sample import Split


def plus(a: int, b: int) -> str:
    """Add two numbers, tens and ones apart: `47 plus 35 is 70 plus 12, that is 82`, marked."""
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    return f"<{a}> plus <{b}> is <{tens}> plus <{ones}>, that is <{a + b}>"


def minus(a: int, b: int) -> str:
    """Take the tens away, then the ones: `71 minus 30 is 41, 41 minus 4 is 37`, marked."""
    tens, ones = b // 10 * 10, b % 10
    steps = []
    if tens:
        steps.append(f"<{a}> minus <{tens}> is <{a - tens}>")
    if ones or not tens:
        steps.append(f"<{a - tens}> minus <{ones}> is <{a - b}>")
    return ", ".join(steps)
