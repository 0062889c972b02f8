"""Who is behind when a program of several processes stands still: `Watchdog`.

_marks      where hostmesh's own calls leave marks, if a watchdog runs; imports nothing
_record     what this process has done last: its step, the calls that it is in, the last events
_sample     where its threads are, and how its host is
_beat       the heartbeat that tells the others of it (pure)
_judge      who is behind, of all beats (pure)
_stacks     stacks in a few words, equal ones together (pure)
_report     the report's sentences (pure)
_post       what passes through the coordination service, in a thread of its own
_keeper     the clock: samples, and reports where the service does not answer; another thread
_act        how a program ends that hangs
_witness    a small process that tells of its parent's sudden end
_watchdog   the public class
_table      who is slow, while all still move (pure)
_gate       `stragglers`, `ready`
_running    `hostmesh.watchdog`: the one that runs
_files      the folder in which a process leaves stacks and its timeline
_signal     SIGUSR1, and a wait that it cuts short
_lead       what the process that leads makes of the beats: incidents, a summary
_missed     which collective a process has not made (pure)
_merge      timelines of several processes read together (pure)
"""
