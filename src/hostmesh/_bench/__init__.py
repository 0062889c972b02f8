"""What hostmesh takes beside its peers: `hostmesh bench`.

_plot  a curve as SVG (pure)
"""
