# Calls C by way of three functions.
import os


def inner():
    return os.getppid()


class Middle:
    def __call__(self):
        return inner()


def outer():
    return Middle()()


outer()
