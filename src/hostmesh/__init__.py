"""hostmesh: host-local values to global JAX arrays and back, on any mesh of several processes."""

from ._check import assert_equal as assert_equal
from ._collectives import allgather as allgather
from ._collectives import barrier as barrier
from ._collectives import broadcast as broadcast
from ._collectives import gather as gather
from ._config import config as config
from ._convert import to_global as to_global
from ._convert import to_local as to_local
from ._coordination import channel as channel
from ._errors import ClusterError as ClusterError
from ._errors import DivergenceError as DivergenceError
from ._errors import FeedError as FeedError
from ._errors import HostmeshError as HostmeshError
from ._errors import ShapeError as ShapeError
from ._errors import SpecError as SpecError
from ._errors import StragglerError as StragglerError
from ._initialize import initialize as initialize
from ._outward import is_locally_complete as is_locally_complete
from ._outward import to_numpy as to_numpy
from ._plan import Placement as Placement
from ._plan import Plan as Plan
from ._plan import plan as plan
from ._shards import from_callback as from_callback
from ._shards import from_shards as from_shards
from ._topology import Topology as Topology
from ._version import __version__ as __version__
