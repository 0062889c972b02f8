"""Multi-process tests on one machine.

`run(function, processes=4, devices=2)` calls a function in every process of a local cluster. The
pytest plugin (`plugin.py`) does the same for tests marked `@pytest.mark.multiprocess`.
"""

from ._run import run as run
