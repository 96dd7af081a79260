# Burns before and after forks, in functions that the child has compiled itself and in those that it has from its parent, and prints
# which process burned in which from when to when. The children end without exit handlers. One of them is multiprocessing's.
import multiprocessing
import os
import sys
import time


def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def burn(end):
    count = 0
    while now() < end:
        for i in range(2000):
            count += i


def shared(end):
    burn(end)


def parent_late(end):
    burn(end)


def child_new(end):
    burn(end)


def grandchild_new(end):
    burn(end)


def process_new(end):
    burn(end)


def phase(function):
    # Compiled before the phase, in which nothing but Python is to run.
    function(0)
    begin = now()
    function(begin + seconds)
    os.write(1, f"{os.getpid()} {function.__name__} {begin} {now()}\n".encode())


def fork(*functions, then=None):
    pid = os.fork()
    if pid == 0:
        for function in functions:
            phase(function)
        if then is not None:
            then()
        os._exit(0)
    return pid


def grandchild():
    os.waitpid(fork(grandchild_new, child_new, shared), 0)


seconds = float(sys.argv[1])
phase(shared)
child = fork(child_new, shared, then=grandchild)
phase(parent_late)
os.waitpid(child, 0)
process = multiprocessing.get_context("fork").Process(target=phase, args=(process_new,))
process.start()
process.join()
