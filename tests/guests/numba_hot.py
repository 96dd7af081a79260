"""Two functions that numba compiles, which then burn in turn for so many seconds.

usage: numba_hot.py SECONDS [debug]
"""
import os
import sys
import time

import numba

from bridged import until_named

print("pid", os.getpid(), flush=True)
# LLVM makes unwind tables of these functions only with it.
debug = "debug" in sys.argv


@numba.njit("uint64(uint64)", debug=debug)
def first_leaf(n):
    a = numba.uint64(1)
    for i in range(n):
        a = a * numba.uint64(6364136223846793005) + numba.uint64(i)
    return a


@numba.njit("uint64(uint64)", debug=debug)
def second_leaf(n):
    a = numba.uint64(2)
    for i in range(n):
        a = (a ^ numba.uint64(i)) * numba.uint64(6364136223846793005)
    return a


until_named("second_")
end = time.time() + float(sys.argv[1])
while time.time() < end:
    first_leaf(2_000_000)
    second_leaf(2_000_000)
