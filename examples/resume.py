"""Trains as `train.py` does, saves its state when it is told to stop, and goes on from there.

pip install "hostmesh[demo,grain]" && hostmesh run -n 4 -d 2 --grace 30 examples/resume.py STATE

SIGTERM to any process, or to `hostmesh run`, saves to the file STATE at a step that all agree on. The
next run with that file goes on to the losses of a run without the stop, but for rounding also on
another number of processes: a batch then has the same examples, in another order.
"""

import sys
from pathlib import Path

import numpy as np
from train import batches, is_right, is_test, me, mesh, params, spec, step

import hostmesh as hm

done, saved = 0, sys.argv[1]
if hm.same_choice(Path(saved).exists()):
    like = {"params": params, "done": hm.replicate(np.int32(0), mesh)}
    state = hm.load_safetensors(saved, mesh, None, like=like)
    params, done = state["params"], int(state["done"])
print(f"process {me}: trains from step {done}")
train = batches(np.flatnonzero(~is_test), epochs=8)[done:]
with hm.Feeder(train, mesh, spec, ends="pad", global_batch=64, progress=True) as feeder:
    for batch, mask in feeder:
        if hm.should_stop(done):
            state = {"params": params, "done": hm.replicate(np.int32(done), mesh)}
            hm.save_safetensors(saved, state)
            print(f"process {me}: saved at step {done}")
            sys.exit()
        params, value = step(params, batch, mask)
        value, done = float(value), done + 1  # waits: with steps in flight JAX can hang on CPU
    print(f"process {me}: loss {value:.6f}; {feeder.stats().line()}")
found = hm.evaluate(is_right, batches(np.flatnonzero(is_test)), params, mesh=mesh, specs=spec)
print(f"process {me}: {found.sum} of {found.count} right, {found.mean:.1%}")
