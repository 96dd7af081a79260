# Burns in a function with two different callers, in a C library, and in another thread, and prints from when to when.
import sys
import threading
import time
import zlib


def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def burn(end):
    count = 0
    while now() < end:
        for i in range(2000):
            count += i


def first_inner(end):
    burn(end)


def first_outer(end):
    first_inner(end)


def second_inner(end):
    burn(end)


class Second:
    def outer(self, end):
        second_inner(end)


def library(end):
    data = b"libjitsym" * 100_000
    while now() < end:
        zlib.crc32(data)


def threaded(end):
    thread = threading.Thread(target=first_outer, args=(end,))
    thread.start()
    thread.join()


def main(seconds):
    for name, phase in [("first", first_outer), ("second", Second().outer), ("library", library), ("threaded", threaded)]:
        begin = now()
        phase(begin + seconds)
        print(name, begin, now())


main(float(sys.argv[1]))
