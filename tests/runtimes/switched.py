# Calls C by way of two functions, while trampolines are off and on in turns, and at last by way of a new function.
import os
import sys


def inner():
    return os.getppid()


def outer():
    return inner()


def new():
    return os.getppid()


outer()
sys.activate_stack_trampoline("perf_jit")
outer()
sys.deactivate_stack_trampoline()
outer()
sys.activate_stack_trampoline("perf")
outer()
new()
