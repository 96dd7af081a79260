package jitsym

// #include "shim.h"
import "C"

import "unsafe"

// Unwind says how to find the caller's frame.
type Unwind interface {
	describe(*arena, *C.jitsym_unwind)
}

// Saved says where a register of the caller is: Offset bytes from the CFA. Reg is its DWARF number.
type Saved struct {
	Reg    uint32
	Offset int32
}

// FramePointer is for code that keeps a frame pointer. Zeros stand for the usual prologue.
type FramePointer struct {
	Pushed, Set                uint32
	EpilogueBegin, EpilogueEnd uint32
	CFAOffset                  int32
	Saved                      []Saved
	SavedFrom                  uint32
	Flags                      UnwindFlag
}

// FixedFrame is for code in which the CFA lies CFAOffset bytes above the stack pointer: in all of it, or from SPSet to the
// epilogue.
type FixedFrame struct {
	CFAOffset                  int32
	Saved                      []Saved
	Pushed, SPSet, SavedFrom   uint32
	SPReset                    uint32
	EpilogueBegin, EpilogueEnd uint32
	Flags                      UnwindFlag
}

// Row is the whole state from Offset on: CFA = register CFAReg + CFAOffset.
type Row struct {
	Offset, CFAReg uint32
	CFAOffset      int32
	Saved          []Saved
}

// Rows is a table of rows, in rising order.
type Rows []Row

// EhFrame is a ready .eh_frame section. Addr is what its pc-relative pointers count from.
type EhFrame struct {
	Data []byte
	Addr uintptr
}

func (f FramePointer) describe(a *arena, out *C.jitsym_unwind) {
	out.kind = C.JITSYM_UNWIND_FRAME_POINTER
	out.flags = C.uint32_t(f.Flags)
	out.fp_pushed = C.uint32_t(f.Pushed)
	out.fp_set = C.uint32_t(f.Set)
	out.epilogue_begin = C.uint32_t(f.EpilogueBegin)
	out.epilogue_end = C.uint32_t(f.EpilogueEnd)
	out.cfa_offset = C.int32_t(f.CFAOffset)
	out.saved_count, out.saved = a.saved(f.Saved)
	out.saved_from = C.uint32_t(f.SavedFrom)
}

func (f FixedFrame) describe(a *arena, out *C.jitsym_unwind) {
	out.kind = C.JITSYM_UNWIND_FIXED_FRAME
	out.flags = C.uint32_t(f.Flags)
	out.fp_pushed = C.uint32_t(f.Pushed)
	out.sp_set = C.uint32_t(f.SPSet)
	out.saved_from = C.uint32_t(f.SavedFrom)
	out.sp_reset = C.uint32_t(f.SPReset)
	out.epilogue_begin = C.uint32_t(f.EpilogueBegin)
	out.epilogue_end = C.uint32_t(f.EpilogueEnd)
	out.cfa_offset = C.int32_t(f.CFAOffset)
	out.saved_count, out.saved = a.saved(f.Saved)
}

func (rows Rows) describe(a *arena, out *C.jitsym_unwind) {
	out.kind = C.JITSYM_UNWIND_ROWS
	if len(rows) == 0 {
		return
	}
	out.rows = (*C.jitsym_unwind_row)(a.alloc(uintptr(len(rows)), C.sizeof_jitsym_unwind_row))
	out.row_count = C.uint32_t(len(rows))
	out.row_size = C.sizeof_jitsym_unwind_row
	table := unsafe.Slice(out.rows, len(rows))
	for i, row := range rows {
		count, saved := a.saved(row.Saved)
		table[i] = C.jitsym_unwind_row{
			offset:      C.uint32_t(row.Offset),
			cfa_reg:     C.uint32_t(row.CFAReg),
			cfa_offset:  C.int32_t(row.CFAOffset),
			saved_count: count,
			saved:       saved,
		}
	}
}

func (f EhFrame) describe(a *arena, out *C.jitsym_unwind) {
	out.kind = C.JITSYM_UNWIND_EH_FRAME
	if len(f.Data) == 0 {
		return
	}
	// A copy lies elsewhere than the section, so its address has to be said.
	out.eh_frame = a.alloc(uintptr(len(f.Data)), 1)
	out.eh_frame_size = C.size_t(len(f.Data))
	copy(unsafe.Slice((*byte)(out.eh_frame), len(f.Data)), f.Data)
	out.eh_frame_addr = C.uint64_t(f.Addr)
	if f.Addr == 0 {
		out.eh_frame_addr = C.uint64_t(uintptr(unsafe.Pointer(&f.Data[0])))
	}
}
