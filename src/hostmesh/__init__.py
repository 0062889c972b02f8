"""hostmesh: host-local values to global JAX arrays and back, on any mesh of several processes.

The public names are those of `__init__.pyi`; each is loaded when it is first used.
"""

import lazy_loader

from . import _initialize as _initialize  # sees from now on which line starts a backend

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
