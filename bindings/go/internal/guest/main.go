// Guest makes machine code, registers and runs it, and prints the truth about it, which a test holds against perf.
//
// Usage: guest DIRECTORY. x86-64. `outer` calls `middle`, which calls one of two leaves: `hot` has a frame pointer, `cold` has
// none and is described by rows, and moved half-way.
package main

/*
#include <stdint.h>
#include <time.h>

// Go itself cannot call code of C's kind; and no sibling call, so that this function is in the stack.
__attribute__((noinline)) static void call_code(uintptr_t code, uint64_t argument) {
	((void (*)(uint64_t))code)(argument);
	__asm__ volatile("");
}

static int64_t now(clockid_t clock) {
	struct timespec time;
	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000 + time.tv_nsec;
}
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unsafe"

	"jitsym"
)

const (
	rbx  = 3
	rsp  = 7
	spin = 200_000
)

func init() {
	// The main goroutine stays on the first thread, at whose samples the test looks.
	runtime.LockOSThread()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func now() int64 { return int64(C.now(C.CLOCK_MONOTONIC)) }

// mov ecx, count; again: dec ecx; jnz again
func emitSpin(count uint32) []byte {
	return append(binary.LittleEndian.AppendUint32([]byte{0xb9}, count), 0xff, 0xc9, 0x75, 0xfc)
}

// Pages that can be written and executed.
type memory struct {
	pages []byte
	used  uint64
}

type place struct {
	addr              uintptr
	before, done, end int64
	how               string
}

type function struct {
	name   string
	code   []byte
	unwind jitsym.Unwind
	rows   [][2]uint32
	places []place

	registered jitsym.Code
}

func newFunction(name string, code []byte, unwind jitsym.Unwind, rows ...[2]uint32) *function {
	return &function{name: name, code: code, unwind: unwind, rows: rows}
}

// push rbp; mov rbp, rsp; BODY; pop rbp; ret
func framed(name string, body []byte, rows ...[2]uint32) *function {
	code := append(append([]byte{0x55, 0x48, 0x89, 0xe5}, body...), 0x5d, 0xc3)
	return newFunction(name, code, jitsym.FramePointer{EpilogueBegin: uint32(len(code) - 1)}, rows...)
}

// put copies the code behind what is there, and returns its address and its bytes there.
func (f *function) put(m *memory) (uintptr, []byte) {
	bytes := m.pages[m.used:][:len(f.code)]
	copy(bytes, f.code)
	m.used = (m.used + uint64(len(f.code)) + 15) &^ 15
	return uintptr(unsafe.Pointer(&bytes[0])), bytes
}

func (f *function) register(session *jitsym.Session, m *memory, source string) {
	before := now()
	addr, bytes := f.put(m)
	info := jitsym.CodeInfo{
		Addr: addr, Size: uint64(len(f.code)), Name: f.name, Bytes: bytes, Unwind: f.unwind,
	}
	if len(f.rows) == 1 {
		info.File, info.Line = source, f.rows[0][1]
		f.name = fmt.Sprintf("%s %s:%d", f.name, source, info.Line)
	} else {
		for _, row := range f.rows {
			info.Lines = append(info.Lines, jitsym.Line{Offset: row[0], Line: row[1], Column: 1, File: source})
		}
	}
	f.registered = must(session.Register(info))
	f.places = append(f.places, place{addr, before, now(), 0, "register"})
}

func (f *function) move(m *memory) {
	before := now()
	addr, bytes := f.put(m)
	must(0, f.registered.Move(jitsym.Target{Addr: addr, Bytes: bytes}))
	f.places[len(f.places)-1].end = before
	f.places = append(f.places, place{addr, before, now(), 0, "move"})
}

func (f *function) unregister() {
	f.places[len(f.places)-1].end = now()
	must(0, f.registered.Unregister())
}

func (f *function) addr() uintptr { return f.places[len(f.places)-1].addr }

func main() {
	source := os.Args[1] + "/guest.toy"
	session := must(jitsym.Open(nil))
	protection := syscall.PROT_READ | syscall.PROT_WRITE | syscall.PROT_EXEC
	m := &memory{pages: must(syscall.Mmap(-1, 0, 1<<16, protection, syscall.MAP_PRIVATE|syscall.MAP_ANON))}

	hot := framed("hot λ", append(emitSpin(spin), emitSpin(2*spin)...), [2]uint32{0, 10}, [2]uint32{4, 11}, [2]uint32{13, 12})
	// push rbx; sub rsp, 32; mov ebx, 1; spin; add rsp, 32; pop rbx; ret
	code := append([]byte{0x53, 0x48, 0x83, 0xec, 0x20, 0xbb, 1, 0, 0, 0}, emitSpin(spin)...)
	code = append(code, 0x48, 0x83, 0xc4, 0x20, 0x5b, 0xc3)
	saved, size := []jitsym.Saved{{Reg: rbx, Offset: -16}}, uint32(len(code))
	cold := newFunction("cold", code, jitsym.Rows{
		{Offset: 0, CFAReg: rsp, CFAOffset: 8},
		{Offset: 1, CFAReg: rsp, CFAOffset: 16, Saved: saved},
		{Offset: 5, CFAReg: rsp, CFAOffset: 48, Saved: saved},
		{Offset: size - 2, CFAReg: rsp, CFAOffset: 16, Saved: saved},
		{Offset: size - 1, CFAReg: rsp, CFAOffset: 8},
	}, [2]uint32{0, 20})
	middle := framed("middle", []byte{0xff, 0xd7}, [2]uint32{0, 30}, [2]uint32{4, 31}) // call rdi
	functions := []*function{hot, cold, middle}
	for _, f := range functions {
		f.register(session, m, source)
	}
	// mov rax, middle; call rax
	call := append(binary.LittleEndian.AppendUint64([]byte{0x48, 0xb8}, uint64(middle.addr())), 0xff, 0xd0)
	outer := framed("outer", call, [2]uint32{0, 40}, [2]uint32{4, 41})
	outer.register(session, m, source)
	functions = append(functions, outer)

	// Longer where perf takes few samples.
	pace, err := strconv.ParseFloat(os.Getenv("TEST_PACE"), 64)
	if err != nil {
		pace = 1
	}

	var out strings.Builder
	work := func(leaf *function, seconds float64) {
		begin := C.now(C.CLOCK_THREAD_CPUTIME_ID)
		end := begin + C.int64_t(seconds*pace*1e9)
		for C.now(C.CLOCK_THREAD_CPUTIME_ID) < end {
			C.call_code(C.uintptr_t(outer.addr()), C.uint64_t(leaf.addr()))
		}
		spent := C.now(C.CLOCK_THREAD_CPUTIME_ID) - begin
		fmt.Fprintf(&out, "stack\tmain\t%d\t%s\tmiddle\touter\tcall_code\n", spent, leaf.name)
	}
	work(hot, 0.5)
	work(cold, 0.3)
	cold.move(m)
	work(cold, 0.3)
	hot.unregister()
	must(0, session.Flush(time.Minute))

	fmt.Fprintf(&out, "pid\t%d\nsource\t%s\narena\t%x\t%d\n", os.Getpid(), source, unsafe.Pointer(&m.pages[0]), len(m.pages))
	fmt.Fprintf(&out, "path\tmap\t%s\n", must(session.Path(jitsym.SinkMap)))
	fmt.Fprintf(&out, "path\tjitdump\t%s\n", must(session.Path(jitsym.SinkJitdump)))
	for i, f := range functions {
		fmt.Fprintf(&out, "function\t%d\t%s\t%d\n", i, f.name, len(f.code))
		for _, row := range f.rows {
			fmt.Fprintf(&out, "row\t%d\t%d\t%d\t1\n", i, row[0], row[1])
		}
		for _, p := range f.places {
			fmt.Fprintf(&out, "place\t%d\t%s\t%x\t%d\t%d\t%d\t%d\t%s\n",
				i, f.name, p.addr, len(f.code), p.before, p.done, p.end, p.how)
		}
	}
	stats := reflect.ValueOf(must(session.Stats()))
	for i := 0; i < stats.NumField(); i++ {
		fmt.Fprintf(&out, "stat\t%s\t%d\n", snake(stats.Type().Field(i).Name), stats.Field(i).Uint())
	}
	must(0, session.Close())
	fmt.Print(out.String(), "end\n")
}

// snake makes names of C from those of Go.
func snake(name string) string {
	var out strings.Builder
	for i, c := range name {
		if unicode.IsUpper(c) && i > 0 {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(c))
	}
	return out.String()
}
