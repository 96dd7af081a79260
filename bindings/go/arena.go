package jitsym

// #include "shim.h"
import "C"

import (
	"strings"
	"unsafe"
)

// An arena is memory of C for the time of one call: what a struct points to must not be memory of Go.
type arena struct {
	blocks []unsafe.Pointer
	nul    bool // a string has a NUL, at which it would end in C
}

// alloc returns room for so many elements, which the caller fills. Like Go's own, it does not return without memory.
func (a *arena) alloc(count, size uintptr) unsafe.Pointer {
	block := C.malloc(C.size_t(count * size))
	a.blocks = append(a.blocks, block)
	return block
}

func (a *arena) free() {
	for _, block := range a.blocks {
		C.free(block)
	}
}

func (a *arena) string(text string) *C.char {
	a.nul = a.nul || strings.IndexByte(text, 0) >= 0
	return a.name(text)
}

// name is for text that comes with its length.
func (a *arena) name(text string) *C.char {
	block := C.CString(text)
	a.blocks = append(a.blocks, unsafe.Pointer(block))
	return block
}

// path returns NULL for the empty string.
func (a *arena) path(text string) *C.char {
	if text == "" {
		return nil
	}
	return a.string(text)
}

func (a *arena) lines(lines []Line) *C.jitsym_line {
	if len(lines) == 0 {
		return nil
	}
	block := (*C.jitsym_line)(a.alloc(uintptr(len(lines)), C.sizeof_jitsym_line))
	table := unsafe.Slice(block, len(lines))
	files := make(map[string]*C.char)
	for i, line := range lines {
		file, known := files[line.File]
		if !known {
			file = a.string(line.File)
			files[line.File] = file
		}
		table[i] = C.jitsym_line{
			offset: C.uint32_t(line.Offset),
			line:   C.uint32_t(line.Line),
			column: C.uint32_t(line.Column),
			file:   file,
		}
	}
	return block
}

func (a *arena) inlines(inlines []Inline) *C.jitsym_inline {
	if len(inlines) == 0 {
		return nil
	}
	block := (*C.jitsym_inline)(a.alloc(uintptr(len(inlines)), C.sizeof_jitsym_inline))
	table := unsafe.Slice(block, len(inlines))
	for i, inline := range inlines {
		table[i] = C.jitsym_inline{
			begin:       C.uint32_t(inline.Begin),
			end:         C.uint32_t(inline.End),
			name:        a.name(inline.Name),
			name_len:    C.size_t(len(inline.Name)),
			call_file:   a.string(inline.CallFile),
			call_line:   C.uint32_t(inline.CallLine),
			call_column: C.uint32_t(inline.CallColumn),
			// Of 0 that is the number that stands for none.
			parent: C.uint32_t(inline.In - 1),
		}
	}
	return block
}

func (a *arena) saved(registers []Saved) (C.uint32_t, *C.jitsym_saved_register) {
	if len(registers) == 0 {
		return 0, nil
	}
	block := (*C.jitsym_saved_register)(a.alloc(uintptr(len(registers)), C.sizeof_jitsym_saved_register))
	table := unsafe.Slice(block, len(registers))
	for i, register := range registers {
		table[i] = C.jitsym_saved_register{reg: C.uint32_t(register.Reg), offset: C.int32_t(register.Offset)}
	}
	return C.uint32_t(len(registers)), block
}

func (a *arena) unwind(unwind Unwind) *C.jitsym_unwind {
	if unwind == nil {
		return nil
	}
	block := (*C.jitsym_unwind)(a.alloc(1, C.sizeof_jitsym_unwind))
	*block = C.jitsym_unwind{struct_size: C.sizeof_jitsym_unwind}
	unwind.describe(a, block)
	return block
}
