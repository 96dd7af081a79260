package jitsym_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"jitsym"
)

var code = []byte{0xb8, 42, 0, 0, 0, 0xc3} // mov eax, 42; ret

const addr = 0x7e0000000000 // nothing is there: the bytes come from elsewhere

var piece = jitsym.CodeInfo{Addr: addr, Size: 6, Name: "code", Bytes: code}

// fixture is a test with a directory of its own. Sessions of a process share code and counters, and so do tests.
type fixture struct {
	*testing.T
	dir    string
	before jitsym.Stats
}

func begin(t *testing.T) *fixture {
	f := &fixture{T: t, dir: t.TempDir()}
	f.with(nil, func(s *jitsym.Session) { f.before = value(s.Stats())(f) })
	t.Cleanup(func() { f.with(nil, func(s *jitsym.Session) { f.ok(s.UnregisterRange(addr, 1<<40, 0)) }) })
	return f
}

func value[T any](v T, err error) func(*fixture) T {
	return func(f *fixture) T {
		f.Helper()
		f.ok(err)
		return v
	}
}

func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) equal(got, want any) {
	f.Helper()
	if got != want {
		f.Fatalf("%v, not %v", got, want)
	}
}

func (f *fixture) is(err error, status jitsym.Status) {
	f.Helper()
	if !errors.Is(err, status) {
		f.Fatalf("%v, not %v", err, status)
	}
}

func (f *fixture) open(options *jitsym.Options) *jitsym.Session {
	f.Helper()
	if options == nil {
		options = new(jitsym.Options)
	}
	if options.MapDir == "" {
		options.MapDir = f.dir
	}
	options.JitdumpDir = f.dir
	return value(jitsym.Open(options))(f)
}

func (f *fixture) with(options *jitsym.Options, run func(*jitsym.Session)) {
	f.Helper()
	session := f.open(options)
	defer func() { f.ok(session.Close()) }()
	run(session)
}

// counted are the counters since the test began.
func (f *fixture) counted(s *jitsym.Session) jitsym.Stats {
	f.Helper()
	f.ok(s.Flush(time.Minute))
	now := value(s.Stats())(f)
	now.Registered -= f.before.Registered
	now.Moved -= f.before.Moved
	now.Unregistered -= f.before.Unregistered
	now.NamesChanged -= f.before.NamesChanged
	now.Unreadable -= f.before.Unreadable
	return now
}

func (f *fixture) read(pattern string) []byte {
	f.Helper()
	return value(os.ReadFile(filepath.Join(f.dir, fmt.Sprintf(pattern, os.Getpid()))))(f)
}

func (f *fixture) mapHas(text string) {
	f.Helper()
	if all := f.read("perf-%d.map"); !bytes.Contains(all, []byte(text)) {
		f.Fatalf("no %q in\n%s", text, all)
	}
}

func TestLife(t *testing.T) {
	f := begin(t)
	session := f.open(nil)
	info := piece
	info.Name = "answer λ"
	answer := value(session.Register(info))(f)
	if answer.ID() == 0 {
		f.Fatal("no id")
	}
	f.ok(session.Flush(time.Minute))
	f.mapHas("7e0000000000 6 answer λ\n")
	f.ok(answer.Move(jitsym.Target{Addr: addr + 64, Bytes: code}))
	f.ok(answer.Unregister())
	info.Addr += 128
	info.Name = "a\xffb"
	f.ok(value(session.Register(info))(f).Unregister())
	info.Name = "cut off here"[7:7]
	value(session.Register(info))(f)
	f.ok(session.UnregisterRange(addr, 4096, 0))
	stats := f.counted(session)
	f.equal([5]uint64{stats.Registered, stats.Moved, stats.Unregistered, stats.NamesChanged, stats.Live}, [5]uint64{3, 1, 3, 2, 0})
	f.equal(stats.Unreadable, uint64(0))
	f.equal(stats.SinksRunning, jitsym.SinkMap|jitsym.SinkJitdump|jitsym.SinkRegion)
	f.equal(session.Wanted(), jitsym.WantCode|jitsym.WantLines|jitsym.WantUnwind|jitsym.WantRegion)
	f.mapHas("jit_7e0000000080")
	f.equal(value(session.Path(jitsym.SinkMap))(f), filepath.Join(f.dir, fmt.Sprintf("perf-%d.map", os.Getpid())))
	f.ok(session.Close())
	f.ok(session.Close())
	f.is(session.Flush(0), jitsym.ErrClosed)
	f.equal(session.Wanted(), jitsym.Want(0))
}

func TestBytes(t *testing.T) {
	f := begin(t)
	pages := value(syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON))(f)
	at := uintptr(unsafe.Pointer(&pages[0]))
	copy(pages, "in a mapping....read by a kernelfor this is kept")
	f.with(nil, func(session *jitsym.Session) {
		for i, info := range []jitsym.CodeInfo{
			{Addr: addr, Bytes: []byte("memory of Go....")},
			{Addr: addr + 64, Bytes: pages[:16]},
			{Addr: at + 16},
			{Addr: at + 32, Bytes: pages[32:], Stable: true},
		} {
			info.Name, info.Size = "code", 16
			code, err := session.Register(info)
			if f.ok(err); i >= 2 {
				f.ok(code.Unregister())
			}
		}
		f.equal(f.counted(session).Unreadable, uint64(0))
	})
	dump := f.read("jit-%d.dump")
	for _, text := range []string{"memory of Go....", "in a mapping....", "read by a kernel", "for this is kept"} {
		if !bytes.Contains(dump, []byte("code\x00"+text)) {
			f.Error("not in the dump:", text)
		}
	}
}

// Bytes may lie in an object that has pointers to memory of Go: nobody follows them.
func TestBytesBesidePointers(t *testing.T) {
	f := begin(t)
	object := &struct {
		next *int
		code [6]byte
	}{new(int), *(*[6]byte)(code)}
	f.with(nil, func(session *jitsym.Session) {
		info := piece
		info.Bytes = object.code[:]
		moved := value(session.Register(info))(f)
		f.ok(moved.Move(jitsym.Target{Addr: addr + 64, Bytes: object.code[:]}))
		f.equal(f.counted(session).Unreadable, uint64(0))
	})
}

func TestLate(t *testing.T) {
	f := begin(t)
	f.with(&jitsym.Options{Flags: jitsym.InitOffByDefault}, func(session *jitsym.Session) {
		unseen := value(session.Register(piece))(f)
		f.equal(unseen.ID(), uint64(0))
		f.ok(unseen.Move(jitsym.Target{Addr: addr + 64}))
		f.ok(unseen.Unregister())
		_, err := session.Path(jitsym.SinkMap)
		f.is(err, jitsym.ErrNotRunning)
	})
	f.with(&jitsym.Options{Flags: jitsym.InitOffByDefault | jitsym.InitRemember}, func(session *jitsym.Session) {
		info := piece
		info.Name = "remembered"
		value(session.Register(info))(f)
		f.ok(session.Enable(jitsym.SinkMap))
		f.mapHas("remembered")
		f.ok(session.Disable(0))
		f.equal(value(session.Stats())(f).SinksRunning, jitsym.Sink(0))
	})
}

func TestFramesAndLines(t *testing.T) {
	f := begin(t)
	saved := []jitsym.Saved{{Reg: 3, Offset: -16}}
	rows := jitsym.Rows{{Offset: 0, CFAReg: 7, CFAOffset: 8}, {Offset: 1, CFAReg: 7, CFAOffset: 16, Saved: saved}}
	f.with(nil, func(session *jitsym.Session) {
		info := piece
		for _, info.Unwind = range []jitsym.Unwind{
			jitsym.FramePointer{EpilogueBegin: 5}, jitsym.FixedFrame{CFAOffset: 24, Saved: saved}, rows,
		} {
			info.Addr += 4096
			value(session.Register(info))(f)
		}
		info = piece
		info.Lines = []jitsym.Line{{Line: 1, File: "/src/one.toy"}, {Offset: 3, Line: 8, Column: 5, File: "/src/two.toy"}}
		value(session.Register(info))(f)
		f.equal(f.counted(session).Registered, uint64(4))

		written := func(addr uintptr, unwind jitsym.Unwind) uint64 {
			info = piece
			info.Addr, info.Unwind = addr, unwind
			before := f.counted(session).JitdumpBytes
			value(session.Register(info))(f)
			return f.counted(session).JitdumpBytes - before
		}
		more := append(rows, jitsym.Row{Offset: 5, CFAReg: 7, CFAOffset: 8})
		if written(addr+0x30000, more) <= written(addr+0x20000, rows) {
			f.Error("a row is missing")
		}
		for _, data := range [][]byte{nil, {16, 0, 0, 0, 0, 0}} {
			info = piece
			info.Unwind = jitsym.EhFrame{Data: data}
			if _, err := session.Register(info); err == nil {
				f.Errorf("%v is taken for a section", data)
			}
		}
	})
	if !bytes.Contains(f.read("jit-%d.dump"), []byte("\x08\x00\x00\x00\x05\x00\x00\x00/src/two.toy\x00")) {
		f.Error("the lines are not in the dump")
	}
}

func TestErrors(t *testing.T) {
	f := begin(t)
	refused := func(session *jitsym.Session, want error, change func(*jitsym.CodeInfo)) {
		t.Helper()
		info := piece
		change(&info)
		if _, err := session.Register(info); !errors.Is(err, want) {
			t.Errorf("%v, not %v", err, want)
		}
	}
	f.with(nil, func(session *jitsym.Session) {
		refused(session, jitsym.ErrSizeZero, func(c *jitsym.CodeInfo) { c.Size = 0 })
		refused(session, jitsym.ErrAddressRange, func(c *jitsym.CodeInfo) { c.Addr = 0 })
		refused(session, jitsym.ErrShortBytes, func(c *jitsym.CodeInfo) { c.Size = 7 })
		refused(session, jitsym.ErrLineOffset, func(c *jitsym.CodeInfo) {
			c.Lines = []jitsym.Line{{Offset: 2, Line: 1, File: "a"}, {Offset: 9, Line: 1, File: "a"}}
		})
		refused(session, jitsym.ErrNUL, func(c *jitsym.CodeInfo) { c.Lines = []jitsym.Line{{Line: 1, File: "a\x00b"}} })
		refused(session, jitsym.ErrLineFile, func(c *jitsym.CodeInfo) { c.Lines = []jitsym.Line{{Line: 1}} })
		refused(session, jitsym.ErrNUL, func(c *jitsym.CodeInfo) { c.File = "a\x00b" })
		inline := jitsym.Inline{End: 6, Name: "inlined", CallFile: "a\x00b", CallLine: 1}
		refused(session, jitsym.ErrNUL, func(c *jitsym.CodeInfo) { c.Inlines = []jitsym.Inline{inline} })
		inline.Name, inline.CallFile = "a\x00b", "a"
		refused(session, nil, func(c *jitsym.CodeInfo) { c.Inlines, c.Name = []jitsym.Inline{inline}, "a\x00b" })
		refused(session, jitsym.ErrShortBytes, func(c *jitsym.CodeInfo) { c.Bytes = []byte{} })
		// The end of all addresses is not passed.
		region := value(session.CreateRegion(jitsym.RegionOptions{Size: 1 << 16}))(f)
		region.Write[4096] = 1
		other := jitsym.Region(region)
		other.Exec += 8192
		f.is(other.Discard(math.MaxUint64-4095, 4096), jitsym.ErrAddressRange)
		f.equal(region.Write[4096], byte(1))
		f.ok(region.Release())
		refused(session, jitsym.ErrUnwindRegister, func(c *jitsym.CodeInfo) {
			c.Unwind = jitsym.FixedFrame{CFAOffset: 8, Saved: []jitsym.Saved{{Reg: 99, Offset: -16}}}
		})
		both := jitsym.UnwindPaciasp | jitsym.UnwindPacibsp
		for _, unwind := range []jitsym.Unwind{
			jitsym.FramePointer{Flags: both}, jitsym.FixedFrame{CFAOffset: 8, Flags: both},
		} {
			refused(session, jitsym.ErrFlags, func(c *jitsym.CodeInfo) { c.Unwind = unwind })
		}
		old := value(session.Register(piece))(f)
		value(session.Register(piece))(f)
		f.ok(session.Flush(0))
		err := old.Unregister()
		f.is(err, jitsym.ErrUnknownID)
		var status jitsym.Status
		if !errors.As(err, &status) || status.Name() != "JITSYM_ERR_UNKNOWN_ID" {
			t.Error(err)
		}
		if err := old.Move(jitsym.Target{Addr: addr, Bytes: code[:2]}); !errors.Is(err, jitsym.ErrShortBytes) {
			t.Error(err)
		}
		_, err = jitsym.Open(&jitsym.Options{MapDir: "/"})
		f.is(err, jitsym.ErrConflict)
	})
	_, err := jitsym.Open(&jitsym.Options{MapDir: "/nonexistent", Sinks: jitsym.SinkMap})
	f.is(err, jitsym.ErrNoSink)
	if !strings.Contains(err.Error(), "/nonexistent") {
		t.Error(err)
	}
	_, err = jitsym.Open(&jitsym.Options{MapDir: "/tmp\x00", Sinks: jitsym.SinkMap})
	if !errors.Is(err, jitsym.ErrNUL) {
		t.Error(err)
	}
	f.with(nil, func(session *jitsym.Session) {
		if text := value(session.LastError())(f); !strings.Contains(err.Error()+text, "/nonexistent") {
			t.Error(text)
		}
	})
}

func TestWithoutTheLibrary(t *testing.T) {
	if os.Getenv("JITSYM_LIB") == "libm.so.6" {
		_, err := jitsym.Open(nil)
		fmt.Println(jitsym.Available(), errors.Is(err, jitsym.ErrLibrary), err)
		os.Exit(0)
	}
	f := begin(t)
	child := exec.Command(os.Args[0], "-test.run", "^TestWithoutTheLibrary$")
	// A perf map would be written without the library.
	child.Env = append(os.Environ(), "JITSYM_LIB=libm.so.6", "JITSYM=jitdump")
	out := string(value(child.Output())(f))
	if !strings.HasPrefix(out, "false true jitsym: the shared library was not found") ||
		!strings.Contains(out, "libm.so.6: undefined symbol: jitsym_init") {
		f.Error(out)
	}
	f.equal(jitsym.Available(), true)
	f.equal(jitsym.Version(), "0.1.0")
}

func TestWithoutASession(t *testing.T) {
	f := begin(t)
	var session *jitsym.Session
	code, err := session.Register(piece)
	f.is(err, jitsym.ErrSession)
	f.ok(code.Unregister())
	f.is(session.Flush(0), jitsym.ErrSession)
	f.is(session.Close(), jitsym.ErrSession)
}

func TestGoroutines(t *testing.T) {
	f := begin(t)
	f.with(nil, func(session *jitsym.Session) {
		var all sync.WaitGroup
		handed := make(chan jitsym.Code)
		for number := uintptr(0); number < 4; number++ {
			all.Add(1)
			go func(at uintptr) {
				defer all.Done()
				for i := uintptr(0); i < 300; i++ {
					info := piece
					info.Addr = at + 64*i
					info.Lines = []jitsym.Line{{Line: 1, File: fmt.Sprint("/src/", i)}}
					code, err := session.Register(info)
					if err == nil {
						err = code.Move(jitsym.Target{Addr: at + 1<<16 + 64*i, Bytes: piece.Bytes})
					}
					if err != nil {
						t.Error(err)
					}
					if i%2 == 1 {
						handed <- code
					}
					if i%100 == 0 {
						runtime.GC()
					}
				}
			}(addr + number<<20)
		}
		go func() { all.Wait(); close(handed) }()
		for code := range handed {
			f.ok(code.Unregister())
		}
		stats := f.counted(session)
		f.equal([3]uint64{stats.Registered, stats.Moved, stats.Live}, [3]uint64{1200, 1200, 600})
	})
}

// TestRegions: code memory comes from the library, or is adopted.
func TestRegions(t *testing.T) {
	f := begin(t)
	f.with(nil, func(s *jitsym.Session) {
		region := value(s.CreateRegion(jitsym.RegionOptions{Size: 1, MaxSize: 1 << 20}))(f)
		page := syscall.Getpagesize()
		f.equal(len(region.Write), page)
		copy(region.Write, code)
		running := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), region.Exec)), page)
		f.equal(string(running[:len(code)]), string(code))
		made := value(s.Register(jitsym.CodeInfo{Addr: region.Exec, Size: 6, Name: "in_a_region", Bytes: region.Write}))(f)
		f.ok(s.Flush(time.Minute))
		f.equal(value(s.Stats())(f).RegionCode-f.before.RegionCode, uint64(1))
		file := value(os.ReadFile(value(s.Path(jitsym.SinkRegion))(f)))(f)
		f.equal(bytes.Contains(file, []byte("in_a_region")), true)
		f.ok(made.Unregister())
		inlining := jitsym.CodeInfo{Addr: region.Exec, Size: 6, Name: "inlining", Bytes: region.Write}
		inlining.Lines = []jitsym.Line{{Line: 9, File: "c.go"}}
		inlining.Inlines = []jitsym.Inline{
			{End: 6, Name: "outer", CallFile: "a.go", CallLine: 3, In: 1},
			{Begin: 5, End: 6, Name: "inner", CallFile: "b.go", CallLine: 4, CallColumn: 1, In: 1},
		}
		_, err := s.Register(inlining)
		f.is(err, jitsym.ErrInline)
		inlining.Inlines[0].In = 0
		made = value(s.Register(inlining))(f)
		f.ok(s.Flush(time.Minute))
		path := value(s.Path(jitsym.SinkRegion))(f)
		symbols := string(value(exec.Command("nm", path).Output())(f))
		at := value(strconv.ParseUint(regexp.MustCompile(`(?m)^([0-9a-f]+) . inlining$`).FindStringSubmatch(symbols)[1], 16, 64))(f)
		frames := value(exec.Command("addr2line", "-f", "-i", "-e", path, strconv.FormatUint(at+5, 16)).Output())(f)
		f.equal(string(frames), "inner\nc.go:9\nouter\nb.go:4\ninlining\na.go:3\n")
		f.ok(made.Unregister())
		f.ok(region.Grow(1 << 20))
		f.ok(region.Discard(0, uint64(page)))
		f.equal(running[0], byte(0))
		f.ok(region.Release())
		f.is(region.Release(), jitsym.ErrRegion)
		_, err = s.CreateRegion(jitsym.RegionOptions{})
		f.is(err, jitsym.ErrSizeZero)
		one := value(s.CreateRegion(jitsym.RegionOptions{Size: 1, OneView: true, HugePages: true}))(f)
		f.equal(uintptr(unsafe.Pointer(&one.Write[0])), one.Exec)
		f.equal(one.Exec%(2<<20), uintptr(0))
		f.ok(one.Release())
		piece := value(s.Alloc(200, 128, 0))(f)
		f.equal(len(piece.Write), 256)
		f.equal(piece.Exec%128, uintptr(0))
		f.ok(piece.Shrink(64))
		copy(piece.Write, code)
		f.equal(string(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), piece.Exec)), len(code))), string(code))
		made = value(s.Register(jitsym.CodeInfo{Addr: piece.Exec, Size: 6, Name: "in_a_piece", Bytes: piece.Write}))(f)
		f.ok(piece.Free())
		f.ok(s.Flush(time.Minute))
		f.is(made.Unregister(), jitsym.ErrUnknownID)
		f.is(piece.Free(), jitsym.ErrRegion)
		_, err = s.Alloc(0, 0, 0)
		f.is(err, jitsym.ErrSizeZero)
	})
	protection := syscall.PROT_READ | syscall.PROT_EXEC
	memory := value(syscall.Mmap(-1, 0, 8192, protection, syscall.MAP_PRIVATE|syscall.MAP_ANON))(f)
	start := uintptr(unsafe.Pointer(&memory[0]))
	f.with(nil, func(s *jitsym.Session) {
		region := value(s.AdoptRegion(start, 8192))(f)
		f.equal(region.Exec, start)
		// And one is kept for the next piece.
		f.equal(value(s.Stats())(f).Regions-f.before.Regions, uint64(2))
		f.ok(region.Release())
	})
	f.with(&jitsym.Options{Flags: jitsym.InitAdopt}, func(s *jitsym.Session) {
		value(s.Register(jitsym.CodeInfo{Addr: start, Size: 16, Name: "by_itself", Bytes: memory}))(f)
		f.ok(s.Flush(time.Minute))
		f.equal(value(s.Stats())(f).RegionCode-f.before.RegionCode, uint64(4))
		f.ok(s.UnregisterRange(start, 8192, jitsym.RangeUnmap))
	})
	f.ok(syscall.Munmap(memory))
}
