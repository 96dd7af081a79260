// Package jitsym makes JIT-compiled code visible to perf and other profilers, through libjitsym.
//
//	session, err := jitsym.Open(nil)
//	...
//	code, err := session.Register(jitsym.CodeInfo{Addr: addr, Size: size, Name: "my_function", Bytes: memory[:size]})
//	...
//	err = code.Unregister()
//
// Any goroutine may make any call at any time. What each promises is in the library's reference.
package jitsym

// The headers lie beside this package, or where the library was installed.

// #cgo CFLAGS: -I${SRCDIR}/../../include
// #cgo LDFLAGS: -ldl
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// ErrShortBytes is returned if CodeInfo.Bytes or Target.Bytes has fewer bytes than the code.
var ErrShortBytes = errors.New("jitsym: fewer bytes than the code has")

// ErrNUL is returned if the name of a file or of a directory has a NUL, at which it would end in C.
var ErrNUL = errors.New("jitsym: the name of a file or of a directory has a NUL")

// Options say how a session is to behave. What is zero the library decides itself.
type Options struct {
	Sinks      Sink
	Flags      Init
	MapDir     string
	JitdumpDir string
	SpoolDir   string
	MapDialect MapDialect
	FileMode   uint32
	MaxMemory  uint64
	MaxWait    time.Duration // whole milliseconds
	MapMax     uint64
	JitdumpMax uint64
}

// A Session is open until Close, or until the process ends, and not until the garbage collector finds it. Calls on a nil Session
// fail and are harmless, so a host may go on without one.
type Session struct {
	handle C.handle
	closed atomic.Bool
}

// Open opens a session; nil asks for the defaults and the environment. Without the library, the session writes a perf map alone.
func Open(options *Options) (*Session, error) {
	var memory arena
	defer memory.free()
	given := C.jitsym_options{struct_size: C.sizeof_jitsym_options}
	if options != nil {
		given.sinks = C.uint32_t(options.Sinks)
		given.flags = C.uint32_t(options.Flags)
		given.map_dir = memory.path(options.MapDir)
		given.jitdump_dir = memory.path(options.JitdumpDir)
		given.spool_dir = memory.path(options.SpoolDir)
		given.map_dialect = C.uint32_t(options.MapDialect)
		given.file_mode = C.uint32_t(options.FileMode)
		given.max_memory = C.uint64_t(options.MaxMemory)
		given.max_wait_ms = milliseconds(options.MaxWait)
		given.map_max = C.uint64_t(options.MapMax)
		given.jitdump_max = C.uint64_t(options.JitdumpMax)
	}
	if memory.nul {
		return nil, ErrNUL
	}
	session := new(Session)
	if err := check(C.go_init(&given, &session.handle)); err != nil {
		return nil, err
	}
	return session, nil
}

// A Line says that from Offset on the code belongs to this place in the source.
type Line struct {
	Offset, Line, Column uint32
	File                 string
}

// An Inline says that the code from Begin to End is a function that was inlined, and where the call stood that is gone.
type Inline struct {
	Begin, End           uint32
	Name, CallFile       string
	CallLine, CallColumn uint32
	// In is the number of the entry that it is inlined into, from 1 on; 0: the function itself.
	In uint32
}

// CodeInfo describes a piece of code. Addr and Size are needed, the rest makes it better.
type CodeInfo struct {
	Addr uintptr
	Size uint64
	Name string
	// Bytes is where the code can be read: the memory that it runs in, or another mapping or a copy of it. Without it the
	// library asks the kernel to read at Addr.
	Bytes []byte
	// Unwind says how to find the caller's frame: a FramePointer, FixedFrame, Rows or EhFrame.
	Unwind Unwind
	// File and Line are where the function begins: the end of its name, and its only line if Lines is empty. An empty File is none.
	File  string
	Line  uint32
	Lines []Line
	// Inlines are frames where the code lies in a region.
	Inlines []Inline
	// Stable promises that Bytes is no memory of Go's but a mapping, which stays as it is until the code is unregistered.
	// Then they are not copied now.
	Stable bool
	// More says that other code is registered before any of it runs, so that the call need not wait for a sink that calls wait
	// for.
	More bool
}

// Code is a piece of registered code: a value that can be copied, and used by any goroutine. It is live until Unregister, or
// until other code is registered over it.
type Code struct {
	session *Session
	id      C.jitsym_id
	size    uint64
}

// Register registers code: from now on samples in Size bytes from Addr on belong to Name.
func (s *Session) Register(info CodeInfo) (Code, error) {
	var memory arena
	defer memory.free()
	bytes, err := pointer(info.Bytes, info.Size)
	if err != nil {
		return Code{}, err
	}
	code := C.jitsym_code{
		struct_size:  C.sizeof_jitsym_code,
		addr:         C.uint64_t(info.Addr),
		size:         C.uint64_t(info.Size),
		unwind:       memory.unwind(info.Unwind),
		lines:        memory.lines(info.Lines),
		line_count:   C.size_t(len(info.Lines)),
		line_size:    C.sizeof_jitsym_line,
		flags:        flags(info.Stable),
		inlines:      memory.inlines(info.Inlines),
		inline_count: C.size_t(len(info.Inlines)),
		inline_size:  C.sizeof_jitsym_inline,
		file:         memory.path(info.File),
		line:         C.uint32_t(info.Line),
	}
	if info.More {
		code.flags |= C.JITSYM_CODE_MORE
	}
	if memory.nul {
		return Code{}, ErrNUL
	}
	var id C.jitsym_id
	if err := check(C.go_register(s.c(), code, info.Name, bytes, &id)); err != nil {
		return Code{}, err
	}
	return Code{s, id, info.Size}, nil
}

// A Target is where code has been moved to. Its fields are as in CodeInfo.
type Target struct {
	Addr   uintptr
	Bytes  []byte
	Stable bool
}

// Move tells that the code now runs elsewhere.
func (c Code) Move(target Target) error {
	if c.id == 0 {
		return nil
	}
	bytes, err := pointer(target.Bytes, c.size)
	if err != nil {
		return err
	}
	return check(C.go_move(c.session.c(), c.id, C.jitsym_move_target{
		struct_size: C.sizeof_jitsym_move_target,
		addr:        C.uint64_t(target.Addr),
		flags:       flags(target.Stable),
	}, bytes))
}

// Unregister tells that the code is gone. It is to be called before its memory is used for something else.
func (c Code) Unregister() error {
	if c.id == 0 {
		return nil
	}
	return check(C.go_unregister(c.session.c(), c.id))
}

// ID is the library's name for the code; 0 if no sink runs and nothing is remembered.
func (c Code) ID() uint64 { return uint64(c.id) }

// UnregisterRange tells that all code that the range touches is gone, whoever has registered it. With RangeUnmap the memory is unmapped
// next, and until then nobody reads, writes or runs what is there.
func (s *Session) UnregisterRange(addr uintptr, size uint64, flags RangeFlag) error {
	return check(C.go_unregister_range(s.c(), C.uint64_t(addr), C.uint64_t(size), C.uint32_t(flags)))
}

// Flush waits until all that was registered is in the files; 0 stands for the library's own limit.
func (s *Session) Flush(timeout time.Duration) error {
	return check(C.go_flush(s.c(), milliseconds(timeout)))
}

// Enable starts sinks in the running process; 0 stands for those of the session.
func (s *Session) Enable(sinks Sink) error { return check(C.go_enable(s.c(), C.uint32_t(sinks))) }

// Disable stops sinks in the running process; 0 stands for all.
func (s *Session) Disable(sinks Sink) error { return check(C.go_disable(s.c(), C.uint32_t(sinks))) }

// Close writes what is pending. The files stay, to be read after the recording. The second time is harmless.
func (s *Session) Close() error {
	if s != nil && s.closed.Swap(true) {
		return nil
	}
	return check(C.go_close(s.c()))
}

// Wanted is what the library wants to be told at present: 0 if a registration would be of no use. It is cheap to ask for.
func (s *Session) Wanted() Want { return Want(C.go_wanted(s.c())) }

// LastError is the text of the last failure of a sink; empty if there was none.
func (s *Session) LastError() (string, error) { return lastError(s.c()) }

// Path is the file that a sink writes.
func (s *Session) Path(sink Sink) (string, error) {
	return text(C.JITSYM_DIR_MAX+64, func(buffer *C.char, size C.size_t) C.jitsym_status {
		return C.go_path(s.c(), C.uint32_t(sink), buffer, size)
	})
}

// Available tells whether the library can be loaded: the file that the variable JITSYM_LIB names, or else what the dynamic linker
// finds. Without it every call that needs it returns ErrLibrary, with the reason.
func Available() bool { return C.go_load() == C.JITSYM_OK }

// Version is the version of the library that is running; empty if there is none.
func Version() string {
	number := uint32(C.go_version_number())
	if number == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", number/1000000, number/1000%1000, number%1000)
}

func (s *Session) stats(out *C.jitsym_stats) error { return check(C.go_get_stats(s.c(), out)) }

// c is the session in C, where none is refused.
func (s *Session) c() C.handle {
	if s == nil {
		return 0
	}
	return s.handle
}

func lastError(session C.handle) (string, error) {
	return text(4096, func(buffer *C.char, size C.size_t) C.jitsym_status {
		return C.go_last_error(session, buffer, size)
	})
}

// text returns what a function of the library writes to a buffer.
func text(size C.size_t, write func(*C.char, C.size_t) C.jitsym_status) (string, error) {
	var memory arena
	defer memory.free()
	buffer := (*C.char)(memory.alloc(uintptr(size), 1))
	if err := check(write(buffer, size)); err != nil {
		return "", err
	}
	return C.GoString(buffer), nil
}

func check(status C.jitsym_status) error {
	switch code := Status(status); code {
	case C.JITSYM_OK:
		return nil
	case ErrNoSink, ErrSinkFailed, ErrLibrary:
		// The last failure is that of the process, and can be asked for without a session.
		if detail, err := lastError(0); err == nil && detail != "" {
			return fmt.Errorf("%w: %s", code, detail)
		}
		return code
	default:
		return code
	}
}

func pointer(bytes []byte, size uint64) (*C.uchar, error) {
	if uint64(len(bytes)) < size && bytes != nil {
		return nil, ErrShortBytes
	}
	if len(bytes) == 0 {
		return nil, nil
	}
	return (*C.uchar)(&bytes[0]), nil
}

func flags(stable bool) C.uint32_t {
	if stable {
		return C.JITSYM_CODE_STABLE
	}
	return 0
}

// milliseconds rounds up, so that a short time does not become 0, which has a meaning of its own.
func milliseconds(d time.Duration) C.uint32_t {
	if d < 0 {
		return 1
	}
	ms := (uint64(d) + uint64(time.Millisecond) - 1) / uint64(time.Millisecond)
	if ms > math.MaxUint32 {
		ms = math.MaxUint32
	}
	return C.uint32_t(ms)
}
