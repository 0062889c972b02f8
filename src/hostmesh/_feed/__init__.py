"""Batches of each process's own data to global batches: `Feeder`.

_feeder     the public class: next, state, stats, end
_pipeline   two threads: one reads, the other agrees with the processes and makes global arrays
_threads    how these end with the program
_source     what is read: iterators, their state, leaves as host arrays
_template   what batches are made of: structure, dtypes, shapes; host buffers and global arrays
_ragged     axes that are padded to a size that the processes agree on
_alike      whether processes feed the same rows where they should, and others where not
_ends       what the processes have, and what follows for all (pure)
_rows       which rows of the global batch a process feeds (pure)
_stats      where the time goes
"""
