"""The package with the real library: `python -m unittest discover tests`."""

import contextlib
import copy
import ctypes
import mmap
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import jitsym

CODE = b"\xb8\x2a\x00\x00\x00\xc3"  # mov eax, 42; ret
ADDR = 0x7E0000000000  # nothing is there: the bytes come from elsewhere


class TestCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = directory.name
        with self.session() as session:
            self.before = session.stats()
        self.addCleanup(self.forget)

    def forget(self):
        """Sessions of a process share code and counters, and so do tests."""
        with self.session() as session:
            session.unregister_range(ADDR, 1 << 40)

    def counted(self, session, *names):
        session.flush(60)
        return [getattr(session.stats(), name) - getattr(self.before, name) for name in names]

    def session(self, **options):
        return jitsym.Session(**{"map_dir": self.dir, "jitdump_dir": self.dir, **options})

    def map(self, pid=None):
        with open(f"{self.dir}/perf-{pid or os.getpid()}.map", encoding="utf-8") as file:
            return file.read()

    @contextlib.contextmanager
    def refused(self, cls, name):
        with self.assertRaises(cls) as context:
            yield context
        error = context.exception
        self.assertIs(type(error), cls)
        self.assertEqual(error.name, "JITSYM_" + name)
        self.assertEqual(error.status, jitsym.Status[name])
        self.assertIn(error.name, str(error))


class Life(TestCase):
    def test_code_is_registered_moved_and_unregistered(self):
        with self.session() as session:
            code = session.register(ADDR, len(CODE), "answer λ", CODE)
            self.assertNotEqual(code.id, 0)
            session.flush(60)
            self.assertIn(f"{ADDR:x} 6 answer λ\n", self.map())
            code.move(ADDR + 64, CODE)
            code.unregister()
            code.unregister()
            session.register(ADDR + 128, 6, "a\udc80b", CODE).unregister()
            session.register(ADDR + 128, 6, "", CODE)
            session.unregister_range(ADDR, 4096)
            counted = self.counted(session, "registered", "moved", "unregistered", "names_changed", "unreadable", "live")
            self.assertEqual(counted, [3, 1, 3, 2, 0, 0])
            self.assertEqual(session.stats().sinks_running, jitsym.Sink.MAP | jitsym.Sink.JITDUMP | jitsym.Sink.REGION)
            self.assertEqual(session.wanted, jitsym.Want.CODE | jitsym.Want.LINES | jitsym.Want.UNWIND | jitsym.Want.REGION)
            self.assertEqual(session.path(jitsym.Sink.MAP), f"{self.dir}/perf-{os.getpid()}.map")
            self.assertIn(f"jit_{ADDR + 128:x}", self.map())
        self.assertTrue(session.closed and session.wanted == 0)
        session.close()

    def test_the_bytes_come_from_wherever_they_are(self):
        mapping = mmap.mmap(-1, 4096)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        wanted = []

        def mapped(code, as_what):
            mapping[: len(code)] = code
            return as_what

        with self.session() as session:
            forms = [
                lambda code: code,
                bytearray,
                memoryview,
                lambda code: memoryview(bytearray(code)).toreadonly(),
                lambda code: memoryview(bytearray(b"--" + code))[2:],
                lambda code: mapped(code, mapping),
                lambda code: mapped(code, address),
            ]
            for index, form in enumerate(forms):
                code = b"code in form %d" % index
                wanted.append(code)
                session.register(ADDR + 64 * index, len(code), "code", form(code))
            mapping[:16] = b"read by a kernel"
            session.register(address, 16, "code")
            mapping[16:32] = b"for this is kept"
            stable = session.register(address + 16, 16, "code", address + 16, stable=True)
            stable.unregister()
            path = session.path(jitsym.Sink.JITDUMP)
            self.assertEqual(self.counted(session, "unreadable"), [0])
        with open(path, "rb") as file:
            dump = file.read()
        for code in [*wanted, b"read by a kernel", b"for this is kept"]:
            self.assertIn(b"code\0" + code, dump)

    def test_sinks_that_are_started_later(self):
        with self.session(flags=jitsym.Init.OFF_BY_DEFAULT) as session:
            code = session.register(ADDR, 6, "unseen", CODE)
            self.assertEqual(code.id, 0)
            code.move(ADDR + 64)
            code.unregister()
            with self.refused(jitsym.SinkError, "ERR_NOT_RUNNING"):
                session.path(jitsym.Sink.MAP)
        with self.session(flags=jitsym.Init.OFF_BY_DEFAULT | jitsym.Init.REMEMBER) as session:
            session.register(ADDR, 6, "remembered", CODE)
            session.enable(jitsym.Sink.MAP)
            self.assertIn("remembered", self.map())
            session.disable()
            self.assertEqual(session.stats().sinks_running, 0)

    def test_a_child_goes_on(self):
        with self.session() as session:
            session.register(ADDR, 6, "inherited", CODE)
            # A fork waits a while for the background thread, and not for ever.
            session.flush(60)
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    session.register(ADDR + 64, 6, "of the child", CODE)
                    # Otherwise the parent's code follows only after two seconds.
                    session.enable(jitsym.Sink.MAP)
                    session.close()
                    os._exit(0)
                os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            session.flush(60)
            self.assertNotIn("child", self.map())
            self.assertEqual(
                [line.split(" ", 2)[2] for line in self.map(child).splitlines()], ["inherited", "of the child"]
            )


class Regions(TestCase):
    def test_code_memory_comes_from_the_library(self):
        with self.session() as session:
            region = session.create_region(1, max_size=1 << 20, near=ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value)
            self.assertEqual(region.size, mmap.PAGESIZE)
            self.assertNotEqual(region.exec, region.write)
            addr = region.put(64, CODE)
            self.assertEqual(addr, region.exec + 64)
            if os.uname().machine == "x86_64":
                self.assertEqual(ctypes.CFUNCTYPE(ctypes.c_int)(addr)(), 42)
            code = session.register(addr, len(CODE), "in_a_region", bytes=addr)
            self.assertEqual(self.counted(session, "region_code", "regions"), [1, 1])
            path = session.path(jitsym.Sink.REGION)
            self.assertEqual(path, f"{self.dir}/jit-{os.getpid()}-{path.split('-')[-1]}")
            with open(path, "rb") as file:
                self.assertIn(b"in_a_region", file.read())
            self.assertNotIn("in_a_region", self.map())
            inlines = [jitsym.Inline(0, 6, "outer", "a.py", 3), (5, 6, "inner", "b.py", 4, 1, 0)]
            with self.refused(jitsym.InvalidArgument, "ERR_INLINE"):
                session.register(addr, len(CODE), "refused", bytes=addr, inlines=inlines[1:])
            code = session.register(addr, len(CODE), "inlining", bytes=addr, lines=[(0, 9, "c.py")], inlines=inlines)
            session.flush(60)
            path = session.path(jitsym.Sink.REGION)
            symbols = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout
            at = int(next(line for line in symbols.splitlines() if line.endswith(" inlining")).split()[0], 16)
            frames = ["addr2line", "-f", "-i", "-e", path, hex(at + 5)]
            frames = subprocess.run(frames, check=True, capture_output=True, text=True).stdout.split()
            self.assertEqual(frames, ["inner", "c.py:9", "outer", "b.py:4", "inlining", "a.py:3"])
            region.grow(mmap.PAGESIZE + 1)
            self.assertEqual(region.size, 2 * mmap.PAGESIZE)
            region.put(2 * mmap.PAGESIZE - len(CODE), memoryview(CODE))
            for offset, data in ((-1, b"a"), (2 * mmap.PAGESIZE, b"a"), (2 * mmap.PAGESIZE - 1, b"ab"), (0, bytes(1 << 16))):
                self.assertRaises(ValueError, region.put, offset, data)
            code.unregister()
            region.discard(0, mmap.PAGESIZE)
            self.assertEqual(ctypes.string_at(region.exec, mmap.PAGESIZE), bytes(mmap.PAGESIZE))
            self.assertIn(f"{region.exec:#x}", repr(region))
            region.release()
            with self.refused(jitsym.JitsymError, "ERR_REGION"):
                region.release()

    def test_memory_is_adopted(self):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, 2 * mmap.PAGESIZE, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        view = ctypes.c_char.from_buffer(memory)
        addr = ctypes.addressof(view)
        memory[: len(CODE)] = CODE
        with self.session() as session:
            with self.refused(jitsym.InvalidArgument, "ERR_ALIGNMENT"):
                session.adopt_region(addr, 17)
            region = session.adopt_region(addr, 2 * mmap.PAGESIZE)
            self.assertRaises(ValueError, region.put, 0, CODE)
            self.assertEqual(memory[: len(CODE)], CODE)
            session.register(addr, len(CODE), "adopted", bytes=addr)
            self.assertEqual(self.counted(session, "region_code"), [1])
            session.unregister_range(addr, mmap.PAGESIZE)
            region.release()
            self.assertEqual(memory[: len(CODE)], CODE)
        with self.session(adopt=True) as session:
            session.register(addr, len(CODE), "by_itself", bytes=addr)
            self.assertEqual(self.counted(session, "region_code", "region_refused"), [2, 0])
            with open(session.path(jitsym.Sink.REGION), "rb") as file:
                self.assertIn(b"by_itself", file.read())
            session.unregister_range(addr, mmap.PAGESIZE)
        del view
        memory.close()

    def test_memory_for_one_piece_of_code(self):
        with self.session() as session:
            piece = session.alloc(200, alignment=128, near=ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value)
            self.assertEqual((piece.size, piece.exec % 128), (256, 0))
            piece.shrink(65)
            self.assertEqual(piece.size, 128)
            self.assertRaises(ValueError, piece.put, bytes(129))
            addr = piece.put(CODE)
            self.assertEqual(ctypes.string_at(addr, len(CODE)), CODE)
            session.register(addr, len(CODE), "in_a_piece", bytes=addr)
            self.assertEqual(self.counted(session, "region_code", "live"), [1, 1])
            self.assertIn(f"{piece.exec:#x}", repr(piece))
            piece.free()
            self.assertEqual(self.counted(session, "live"), [0])
            with self.refused(jitsym.JitsymError, "ERR_REGION"):
                piece.free()

    def test_bad_wishes_are_refused(self):
        with self.session() as session:
            with self.refused(jitsym.InvalidArgument, "ERR_SIZE_ZERO"):
                session.create_region(0)
            with self.refused(jitsym.InvalidArgument, "ERR_SIZE_ZERO"):
                session.alloc(0)
            with self.refused(jitsym.InvalidArgument, "ERR_ALIGNMENT"):
                session.create_region(1, alignment=3)
            with self.refused(jitsym.InvalidArgument, "ERR_TOO_LARGE"):
                session.create_region(1 << 40)
            self.assertRaises(ValueError, session.create_region, -1)
            region = session.create_region(1, one_view=True, huge_pages=True)
            self.assertEqual((region.exec, region.exec % (2 << 20)), (region.write, 0))
            region.release()


class Descriptions(TestCase):
    def test_frames_arrive(self):
        rows = jitsym.Rows([jitsym.Row(0, 7, 8), jitsym.Row(1, 7, 16, {3: -16})])
        with self.session() as session:
            for index, unwind in enumerate([jitsym.FramePointer(5), jitsym.FixedFrame(24, {3: -16}), rows]):
                session.register(ADDR + 4096 * index, 6, "framed", CODE, unwind=unwind)

            def written(addr, unwind):
                (before,) = self.counted(session, "jitdump_bytes")
                session.register(addr, 6, "a name", CODE, unwind=unwind)
                return self.counted(session, "jitdump_bytes")[0] - before

            more = jitsym.Rows([*rows.rows, jitsym.Row(5, 7, 8)])
            self.assertGreater(written(ADDR + (2 << 16), more), written(ADDR + (1 << 16), rows))

    def test_lines_are_tuples_of_any_kind(self):
        with self.session() as session:
            path = session.path(jitsym.Sink.JITDUMP)
            lines = [jitsym.Line(0, 1, "/src/one.toy"), (2, 7, b"/src/two.toy"), (3, 8, "/src/two.toy", 5)]
            session.register(ADDR, 6, "lines", CODE, lines=lines)
        with open(path, "rb") as file:
            dump = file.read()
        self.assertIn(b"\x07\0\0\0\0\0\0\0/src/two.toy\0", dump)
        self.assertIn(b"\x08\0\0\0\x05\0\0\0/src/two.toy\0", dump)

    def test_a_subinterpreter_changes_nothing(self):
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            self.skipTest("no such module in this Python")
        other = interpreters.create()
        self.addCleanup(interpreters.destroy, other)
        with self.session() as session:
            # It takes ctypes' list of pointer types away.
            interpreters.run_string(other, "import ctypes")
            session.register(ADDR, len(CODE), "after it", CODE, unwind=jitsym.FramePointer())
            self.assertEqual(self.counted(session, "registered"), [1])

    def test_a_ready_eh_frame(self):
        with self.session() as session, self.assertRaises(jitsym.InvalidArgument):
            session.register(ADDR, 6, "a name", CODE, unwind=jitsym.EhFrame(b"\x10\0\0\0\0\0"))

    def test_an_eh_frame_is_counted_from_where_it_is(self):
        mapping = mmap.mmap(-1, 4096)
        here = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        cie = struct.pack("<2I4s8B4x", 20, 0, b"\x01zR\0", 1, 0x78, 16, 1, 0x1C, 0x0C, 7, 8)
        fde = struct.pack("<2I2q4x", 24, len(cie) + 4, ADDR - (here + len(cie) + 8), 6)
        section = cie + fde + bytes(4)
        mapping[: len(section)] = section
        view = memoryview(mapping)[: len(section)]
        with self.session() as session:
            for data in (view, view.toreadonly()):
                session.register(ADDR, 6, "framed", CODE, unwind=jitsym.EhFrame(data))
            for data in (bytearray(section), section, memoryview(section)):
                with self.refused(jitsym.InvalidArgument, "ERR_UNWIND_FORMAT"):
                    session.register(ADDR, 6, "framed", CODE, unwind=jitsym.EhFrame(data))
                session.register(ADDR, 6, "framed", CODE, unwind=jitsym.EhFrame(data, here))


class Errors(TestCase):
    def test_each_has_its_class_and_status(self):
        with self.session() as session:
            with self.refused(jitsym.InvalidArgument, "ERR_SIZE_ZERO"):
                session.register(ADDR, 0, "none", CODE)
            with self.refused(jitsym.InvalidArgument, "ERR_LINE_OFFSET"):
                session.register(ADDR, 6, "lines", CODE, lines=[(2, 1, "a"), (9, 1, "a")])
            with self.refused(jitsym.InvalidArgument, "ERR_UNWIND_REGISTER"):
                session.register(ADDR, 6, "frame", CODE, unwind=jitsym.FixedFrame(8, {99: -16}))
            both = jitsym.UnwindFlag.PACIASP | jitsym.UnwindFlag.PACIBSP
            for unwind in [jitsym.FramePointer(flags=both), jitsym.FixedFrame(8, flags=both)]:
                with self.refused(jitsym.InvalidArgument, "ERR_FLAGS"):
                    session.register(ADDR, 6, "frame", CODE, unwind=unwind)
            old = session.register(ADDR, 6, "old", CODE)
            session.register(ADDR, 6, "new", CODE)
            session.flush(60)
            with self.refused(jitsym.UnknownId, "ERR_UNKNOWN_ID"):
                old.unregister()
            with self.refused(jitsym.JitsymError, "ERR_CONFLICT"):
                jitsym.Session(map_dir="/")
        with self.refused(jitsym.ClosedError, "ERR_CLOSED"):
            session.flush()
        with self.refused(jitsym.SinkError, "ERR_NO_SINK") as context:
            self.session(sinks=jitsym.Sink.MAP, map_dir="/nonexistent")
        self.assertIn("/nonexistent", str(context.exception))
        with self.session() as session:
            self.assertIn(session.last_error(), str(context.exception))

    def test_they_are_python_s_own_too(self):
        for cls, base in (
            (jitsym.InvalidArgument, ValueError),
            (jitsym.UnknownId, LookupError),
            (jitsym.TimedOut, TimeoutError),
            (jitsym.OutOfMemory, MemoryError),
            (jitsym.SinkError, OSError),
            (jitsym.LibraryNotFound, ImportError),
        ):
            self.assertTrue(issubclass(cls, base))

    def test_they_can_be_pickled_and_copied(self):
        def all_of(cls):
            return [cls, *(found for derived in cls.__subclasses__() for found in all_of(derived))]

        classes = all_of(jitsym.JitsymError)
        self.assertEqual(len(classes), 10)
        for cls in classes:
            arguments = (21, "JITSYM_ERR_NO_SINK", "text", "detail")
            error = cls("detail") if cls is jitsym.LibraryNotFound else cls(*arguments)
            error.more = ["of the program"]
            ways = [copy.copy, copy.deepcopy]
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                ways.append(lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol)))
            for way in ways:
                other = way(error)
                self.assertIs(type(other), cls)
                self.assertEqual((str(other), other.args, vars(other)), (str(error), error.args, vars(error)))

    def test_times_of_any_length(self):
        with self.session() as session:
            for timeout in (float("inf"), 1e308, 10**400, 1e-9, 0, -1.0, float("-inf")):
                with contextlib.suppress(jitsym.TimedOut):
                    session.flush(timeout)
            with self.assertRaises(ValueError):
                session.flush(float("nan"))

    def test_what_c_would_cut_off_is_refused(self):
        with self.session() as session:
            for arguments, options in (
                ((-1, 6, "name", CODE), {}),
                ((1 << 64, 6, "name", CODE), {}),
                ((ADDR, 7, "name", CODE), {}),
                ((ADDR, 6, "name", CODE), {"lines": [(1 << 32, 1, "a")]}),
                ((ADDR, 6, "name", CODE), {"lines": [(0, 1, "a\0b")]}),
                ((ADDR, 6, "name", CODE), {"file": "a\0b", "line": 1}),
                ((ADDR, 6, "name", CODE), {"file": "a", "line": 1 << 32}),
                ((ADDR, 6, "name", CODE), {"unwind": jitsym.FixedFrame(1 << 31)}),
                ((ADDR, 6, "name", CODE), {"stable": True}),
                ((ADDR, 6, "name", CODE), {"inlines": [(0, 6, "a", "b", 1, 0, 0xFFFFFFFF)]}),
            ):
                with self.assertRaises(ValueError):
                    session.register(*arguments, **options)
            for arguments, options in (
                ((ADDR, 6, "name", True), {}),
                ((ADDR, 6, "name", False), {}),
                ((ADDR, 6, "name", True), {"stable": True}),
                ((True, 6, "name", CODE), {}),
                ((ADDR, True, "name", CODE), {}),
                ((ADDR, 6, "name", 1.0), {}),
                ((ADDR, 6, "name", "text"), {}),
                ((ADDR, 6, "name", CODE), {"line": 1.5}),
                ((ADDR, 6, "name", CODE), {"lines": [(0, 1, 7)]}),
                ((ADDR, 6, "name", CODE), {"unwind": jitsym.EhFrame(True)}),
                ((ADDR, 6, "name", CODE), {"unwind": jitsym.FixedFrame(True)}),
            ):
                with self.assertRaises(TypeError):
                    session.register(*arguments, **options)
            old = session.register(ADDR, 6, "name", CODE)
            self.assertRaises(TypeError, old.move, ADDR + 64, True)
            self.assertEqual(self.counted(session, "registered", "moved"), [1, 0])

    def test_what_is_true_is_a_flag(self):
        with self.session() as session:
            # Of 2 times the flag another one would come.
            session.register(ADDR, 6, "name", ADDR, stable=2).unregister()
            region = session.create_region(1, one_view=2)
            self.assertEqual((region.exec, region.exec % (2 << 20) == 0), (region.write, False))
            region.release()

    def test_without_the_library(self):
        program = (
            "import jitsym\n"
            "assert not jitsym.available()\n"
            "try:\n    jitsym.Session()\n"
            "except ImportError as error:\n    print(isinstance(error, jitsym.JitsymError), error)\n"
        )
        for lib, reason in (("/nonexistent/libjitsym.so", "No such file"), ("libm.so.6", "undefined symbol")):
            environment = {**os.environ, "JITSYM_LIB": lib}
            out = subprocess.run(
                [sys.executable, "-I", "-c", program], env=environment, capture_output=True, text=True, check=True
            )
            self.assertIn("True no libjitsym (JITSYM_ERR_LIBRARY): ", out.stdout)
            self.assertIn(reason, out.stdout)


class Threads(TestCase):
    def test_threads_register_at_the_same_time(self):
        def work(number):
            for index in range(300):
                code = session.register(ADDR + (number << 20) + 64 * index, 6, f"code {number} {index}", CODE)
                code.move(ADDR + (number << 20) + (1 << 16) + 64 * index, CODE)
                if index % 2:
                    code.unregister()

        with self.session() as session:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(self.counted(session, "registered", "moved", "live"), [1200, 1200, 600])

    def test_a_call_that_waits_lets_others_run(self):
        asked, seen = threading.Event(), []

        def other():
            asked.wait()
            seen.append(True)

        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        with self.session() as session:
            thread = threading.Thread(target=other)
            thread.start()
            # Now nobody gets the interpreter's lock who is not given it.
            sys.setswitchinterval(1000)
            asked.set()
            end = time.monotonic() + 60
            while not seen and time.monotonic() < end:
                session.flush()
            done = len(seen)
            thread.join()
        self.assertEqual(done, 1)


if __name__ == "__main__":
    unittest.main()
