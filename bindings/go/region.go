package jitsym

// Code memory that is a mapping of an ELF file, so that every profiler which reads ELF files finds names in it with no further step.

// #include "shim.h"
import "C"

import (
	"math"
	"unsafe"
)

// RegionOptions say what a region is to be like. Sizes are in bytes; what is zero the library decides itself.
type RegionOptions struct {
	Size      uint64
	MaxSize   uint64  // it can grow so far
	Alignment uint64  // of the address where code runs
	Near      uintptr // from here all of it can be reached by a displacement of 32 bits
	OneView   bool    // code is written where it runs, and the program changes the protection of the memory itself
	HugePages bool
}

// A Region lasts until Release, or until the process ends. It is a value that can be copied.
type Region struct {
	session *Session
	// Exec is where code runs: the address to register it with.
	Exec uintptr
	// Write is where code is written, as much as the region had when it was created; nil for memory that was adopted. It is no
	// memory of Go's, and is gone with Release.
	Write []byte
}

// CreateRegion makes code memory. If its file cannot be had it is there all the same, and code in it goes to the other sinks.
func (s *Session) CreateRegion(options RegionOptions) (Region, error) {
	given := C.jitsym_region_options{
		struct_size: C.sizeof_jitsym_region_options,
		size:        C.uint64_t(options.Size),
		max_size:    C.uint64_t(options.MaxSize),
		alignment:   C.uint64_t(options.Alignment),
		near_addr:   C.uint64_t(options.Near),
	}
	if options.OneView {
		given.flags |= C.JITSYM_REGION_ONE_VIEW
	}
	if options.HugePages {
		given.flags |= C.JITSYM_REGION_HUGE_PAGES
	}
	out := C.jitsym_region{struct_size: C.sizeof_jitsym_region}
	if err := check(C.go_region_create(s.c(), &given, &out)); err != nil {
		return Region{}, err
	}
	return Region{s, uintptr(out.exec), unsafe.Slice((*byte)(out.write), int(out.size))}, nil
}

// AdoptRegion makes memory of the program a region, whole pages of it, with the same bytes and protections. During the call nobody
// may write to it or change its protection; others may run code there.
func (s *Session) AdoptRegion(addr uintptr, size uint64) (Region, error) {
	if err := check(C.go_region_adopt(s.c(), C.uintptr_t(addr), C.uint64_t(size))); err != nil {
		return Region{}, err
	}
	return Region{s, addr, nil}, nil
}

// Grow makes the region so large, unless it was larger. Nothing moves: Write can be made longer by unsafe.Slice.
func (r Region) Grow(size uint64) error {
	return check(C.go_region_grow(r.session.c(), C.uintptr_t(r.Exec), C.uint64_t(size)))
}

// Discard gives whole pages back, in which no code lives any more. They read zero from now on.
func (r Region) Discard(offset, size uint64) error {
	if offset > math.MaxUint64-uint64(r.Exec) {
		return ErrAddressRange
	}
	return check(C.go_region_discard(r.session.c(), C.uintptr_t(r.Exec)+C.uintptr_t(offset), C.uint64_t(size)))
}

// Release ends the region: memory that was created is gone, memory that was adopted is plain memory again.
func (r Region) Release() error {
	return check(C.go_region_release(r.session.c(), C.uintptr_t(r.Exec)))
}

// A Piece is memory for one piece of code. It lasts until Free, or until the process ends. It is a value that can be copied.
type Piece struct {
	session *Session
	// Exec is where code runs: the address to register it with.
	Exec uintptr
	// Write is where code is written. It is no memory of Go's, and is another piece's after Free.
	Write []byte
}

// Alloc gives code memory of at least that size, in a region that the library makes and shares out. It begins at a multiple of
// alignment, a power of two up to 4096. From the address near all of it can be reached by a displacement of 32 bits. Zero for both
// leaves that to the library.
func (s *Session) Alloc(size, alignment uint64, near uintptr) (Piece, error) {
	out := C.jitsym_region{struct_size: C.sizeof_jitsym_region}
	err := check(C.go_alloc(s.c(), C.uint64_t(size), C.uint64_t(alignment), C.uint64_t(near), &out))
	if err != nil {
		return Piece{}, err
	}
	return Piece{s, uintptr(out.exec), unsafe.Slice((*byte)(out.write), int(out.size))}, nil
}

// Shrink gives back all but the first bytes, before code is registered there. Write stays as long as it was.
func (p Piece) Shrink(size uint64) error {
	return check(C.go_shrink(p.session.c(), C.uintptr_t(p.Exec), C.uint64_t(size)))
}

// Free gives the memory back, and ends the registrations of code in it.
func (p Piece) Free() error {
	return check(C.go_free(p.session.c(), C.uintptr_t(p.Exec)))
}
