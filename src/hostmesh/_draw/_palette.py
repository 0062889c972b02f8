"""Colours of processes: those that people see apart who see some colours alike.

Source: Okabe and Ito, Color Universal Design (2008), https://jfly.uni-koeln.de/color/; their black
is left to the text, and a grey takes its place. A picture of more processes repeats them: the
numbers in it tell, the colours only help.
"""

from __future__ import annotations

# The colour of a process and that of text on it, which stands out by at least 4.5 to 1.
COLOURS = (
    ("#56B4E9", "#000000"),
    ("#E69F00", "#000000"),
    ("#009E73", "#000000"),
    ("#F0E442", "#000000"),
    ("#CC79A7", "#000000"),
    ("#0072B2", "#FFFFFF"),
    ("#D55E00", "#000000"),
    ("#999999", "#000000"),
)


def number_of(process: int) -> int:
    """Which of the colours a process has."""
    return process % len(COLOURS)
