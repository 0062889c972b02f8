"""`python -m hostmesh`: the command, by the Python that runs it."""

from ._cli import main

main(prog_name="hostmesh")
