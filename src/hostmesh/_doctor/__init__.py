"""What is wrong with a cluster, before a long job: `hostmesh.doctor()` and `hostmesh doctor`.

_command    the command: starts the processes' look, ends with a status
_examine    `doctor()`: each process gathers and measures, process 0 judges, all get its findings
_diagnosis  what they get
_rollcall   who has come, before JAX starts: it would abort those that wait for a missing process
_meeting    what processes tell each other here
_facts      what a process knows of itself: versions, devices, settings
_host       what it knows of its machine
_secrets    which variables of the environment are told, and which as digests only (pure)
_measure    round trips, clocks, collectives, links between neighbours, host to device and back
_judge      facts and figures of all processes -> findings (pure), by way of
            _alike (what should be equal), _binding (devices, launchers, names), _room, _speed, _mesh
_finding    a finding, and processes grouped by equal values (pure)
_show       the tables; _units sizes and times in words (pure)
_trace      which import started a JAX backend
"""
