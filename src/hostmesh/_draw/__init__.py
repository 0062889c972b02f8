"""Pictures of who holds what: `_picture` decides what is shown, `_text` and `_svg` draw it.

`_known` finds the plan of an array, and `_show` has `draw`, which shows it in its place.
"""
