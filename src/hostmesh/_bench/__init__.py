"""`hostmesh bench`: what is claimed of speed, raced against JAX and others on this machine.

_command      the command
_claim        what a claim is, and a race: whose contestants are called in turns (pure)
claims/       the claims, a file for each race
_race         runs races in a group of processes
_result       times of rounds -> medians, spreads, ratios, whether a claim holds (pure)
_table        results as a table for people (pure, but for the console)
_record       results as JSON, with machine and versions
_curves       the same over processes, bytes, leaves and devices
_accelerator  host to device, in a process that sees the accelerators
_plot         a curve as SVG (pure)
"""
