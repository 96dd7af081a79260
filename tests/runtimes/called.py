# Calls C by way of three functions: at first, and then from a C function that nothing else calls.
import os
import sys


def inner():
    return os.getppid()


class Middle:
    def __call__(self):
        return inner()


def outer():
    return Middle()()


outer()
sys.call_tracing(outer, ())
