package jitsym

// What is in the header by name: numbers and counters. A test looks for what is missing.

// #include "shim.h"
import "C"

// A Status is what a call came to. Failures are errors, for errors.Is and errors.As; a call that fails has had no effect.
type Status uint32

// The failures, by their names in C.
const (
	ErrNull            Status = C.JITSYM_ERR_NULL
	ErrStructSize      Status = C.JITSYM_ERR_STRUCT_SIZE
	ErrStructTail      Status = C.JITSYM_ERR_STRUCT_TAIL
	ErrFlags           Status = C.JITSYM_ERR_FLAGS
	ErrEnum            Status = C.JITSYM_ERR_ENUM
	ErrSizeZero        Status = C.JITSYM_ERR_SIZE_ZERO
	ErrAddressRange    Status = C.JITSYM_ERR_ADDRESS_RANGE
	ErrTooLarge        Status = C.JITSYM_ERR_TOO_LARGE
	ErrLineOffset      Status = C.JITSYM_ERR_LINE_OFFSET
	ErrLineFile        Status = C.JITSYM_ERR_LINE_FILE
	ErrUnwindOrder     Status = C.JITSYM_ERR_UNWIND_ORDER
	ErrUnwindRegister  Status = C.JITSYM_ERR_UNWIND_REGISTER
	ErrUnwindFormat    Status = C.JITSYM_ERR_UNWIND_FORMAT
	ErrArch            Status = C.JITSYM_ERR_ARCH
	ErrSession         Status = C.JITSYM_ERR_SESSION
	ErrClosed          Status = C.JITSYM_ERR_CLOSED
	ErrUnknownID       Status = C.JITSYM_ERR_UNKNOWN_ID
	ErrTimeout         Status = C.JITSYM_ERR_TIMEOUT
	ErrDropped         Status = C.JITSYM_ERR_DROPPED
	ErrNoMemory        Status = C.JITSYM_ERR_NO_MEMORY
	ErrNoSink          Status = C.JITSYM_ERR_NO_SINK
	ErrSinkFailed      Status = C.JITSYM_ERR_SINK_FAILED
	ErrForked          Status = C.JITSYM_ERR_FORKED
	ErrThread          Status = C.JITSYM_ERR_THREAD
	ErrConflict        Status = C.JITSYM_ERR_CONFLICT
	ErrTooManySessions Status = C.JITSYM_ERR_TOO_MANY_SESSIONS
	ErrPath            Status = C.JITSYM_ERR_PATH
	ErrBuffer          Status = C.JITSYM_ERR_BUFFER
	ErrNotRunning      Status = C.JITSYM_ERR_NOT_RUNNING
	ErrBusy            Status = C.JITSYM_ERR_BUSY
	ErrInternal        Status = C.JITSYM_ERR_INTERNAL
	ErrWriter          Status = C.JITSYM_ERR_WRITER
	ErrForbidden       Status = C.JITSYM_ERR_FORBIDDEN
	ErrLibrary         Status = C.JITSYM_ERR_LIBRARY
	ErrNotPlain        Status = C.JITSYM_ERR_NOT_PLAIN
	ErrLocked          Status = C.JITSYM_ERR_LOCKED
	ErrRegion          Status = C.JITSYM_ERR_REGION
	ErrAlignment       Status = C.JITSYM_ERR_ALIGNMENT
	ErrInline          Status = C.JITSYM_ERR_INLINE
	ErrNotFound        Status = C.JITSYM_ERR_NOT_FOUND
)

// Error is a sentence in English.
func (s Status) Error() string { return "jitsym: " + C.GoString(C.go_status_text(C.int32_t(s))) }

// Name is the name of the status in C, for instance "JITSYM_ERR_UNKNOWN_ID".
func (s Status) Name() string { return C.GoString(C.go_status_name(C.int32_t(s))) }

// Sink is where symbols can be written: bits.
type Sink uint32

// The sinks.
const (
	SinkMap      Sink = C.JITSYM_SINK_MAP
	SinkJitdump  Sink = C.JITSYM_SINK_JITDUMP
	SinkRegion   Sink = C.JITSYM_SINK_REGION
	SinkGdb      Sink = C.JITSYM_SINK_GDB
	SinkUnwinder Sink = C.JITSYM_SINK_UNWINDER
	SinkValgrind Sink = C.JITSYM_SINK_VALGRIND
	SinkLookup   Sink = C.JITSYM_SINK_LOOKUP
)

// Want is what the library wants to be told: bits.
type Want uint32

// What Session.Wanted returns.
const (
	WantCode   Want = C.JITSYM_WANT_CODE
	WantLines  Want = C.JITSYM_WANT_LINES
	WantUnwind Want = C.JITSYM_WANT_UNWIND
	WantAdopt  Want = C.JITSYM_WANT_ADOPT
	WantRegion Want = C.JITSYM_WANT_REGION
)

// UnwindFlag is how AArch64 code signs its return address: at most one.
type UnwindFlag uint32

// The flags of FramePointer and FixedFrame.
const (
	UnwindPaciasp UnwindFlag = C.JITSYM_UNWIND_PACIASP
	UnwindPacibsp UnwindFlag = C.JITSYM_UNWIND_PACIBSP
)

// Init are flags of a session: bits.
type Init uint32

// The flags; the library's reference says what each does.
const (
	InitEnvWins      Init = C.JITSYM_INIT_ENV_WINS
	InitOffByDefault Init = C.JITSYM_INIT_OFF_BY_DEFAULT
	InitNoUnwind     Init = C.JITSYM_INIT_NO_UNWIND
	InitDropWhenFull Init = C.JITSYM_INIT_DROP_WHEN_FULL
	InitNoSpool      Init = C.JITSYM_INIT_NO_SPOOL
	InitRecover      Init = C.JITSYM_INIT_RECOVER
	InitForkNow      Init = C.JITSYM_INIT_FORK_NOW
	InitForkAlone    Init = C.JITSYM_INIT_FORK_ALONE
	InitRemoveFiles  Init = C.JITSYM_INIT_REMOVE_FILES
	InitRemember     Init = C.JITSYM_INIT_REMEMBER
	InitAdopt        Init = C.JITSYM_INIT_ADOPT
	InitBridge       Init = C.JITSYM_INIT_BRIDGE
	InitNoThreads    Init = C.JITSYM_INIT_NO_THREADS
)

// MapDialect says who is to read the perf map.
type MapDialect uint32

// The dialects.
const (
	MapPerf       MapDialect = C.JITSYM_MAP_PERF
	MapSimpleperf MapDialect = C.JITSYM_MAP_SIMPLEPERF
)

// RangeFlag are flags of a range of code: bits.
type RangeFlag uint32

// The flags.
const (
	RangeUnmap RangeFlag = C.JITSYM_RANGE_UNMAP
)

// SpoolState says whether records on their way to the writer outlive the process.
type SpoolState uint32

// The states.
const (
	SpoolNone   SpoolState = C.JITSYM_SPOOL_NONE
	SpoolShared SpoolState = C.JITSYM_SPOOL_SHARED
)

// Stats are the counters of the process; the library's reference says what each counts.
type Stats struct {
	SinksRunning      Sink
	SinksFailed       Sink
	Registered        uint64
	Moved             uint64
	Unregistered      uint64
	Overwritten       uint64
	Live              uint64
	Dropped           uint64
	Unreadable        uint64
	NamesChanged      uint64
	JitdumpBytes      uint64
	JitdumpRecords    uint64
	MapBytes          uint64
	MapEntries        uint64
	MapRewrites       uint64
	MapForgotten      uint64
	WriteErrors       uint64
	Memory            uint64
	MemoryHeld        uint64
	Waited            uint64
	Recovered         uint64
	Spool             SpoolState
	Inherited         uint32
	JitdumpLost       uint64
	JitdumpHeld       uint64
	JitdumpRewrites   uint64
	MapOmitted        uint64
	Regions           uint64
	RegionCode        uint64
	RegionBytes       uint64
	RegionGenerations uint64
	RegionLate        uint64
	RegionRefused     uint64
	RegionLeftOut     uint64
	CallsRefused      uint64
	RegionPutOff      uint64
	RegionLimit       uint64
	Threads           uint64
	LinesLeftOut      uint64
}

// Stats reads the counters. Flush first for exact ones.
func (s *Session) Stats() (Stats, error) {
	out := C.jitsym_stats{struct_size: C.sizeof_jitsym_stats}
	if err := s.stats(&out); err != nil {
		return Stats{}, err
	}
	return Stats{
		SinksRunning:      Sink(out.sinks_running),
		SinksFailed:       Sink(out.sinks_failed),
		Registered:        uint64(out.registered),
		Moved:             uint64(out.moved),
		Unregistered:      uint64(out.unregistered),
		Overwritten:       uint64(out.overwritten),
		Live:              uint64(out.live),
		Dropped:           uint64(out.dropped),
		Unreadable:        uint64(out.unreadable),
		NamesChanged:      uint64(out.names_changed),
		JitdumpBytes:      uint64(out.jitdump_bytes),
		JitdumpRecords:    uint64(out.jitdump_records),
		MapBytes:          uint64(out.map_bytes),
		MapEntries:        uint64(out.map_entries),
		MapRewrites:       uint64(out.map_rewrites),
		MapForgotten:      uint64(out.map_forgotten),
		WriteErrors:       uint64(out.write_errors),
		Memory:            uint64(out.memory),
		MemoryHeld:        uint64(out.memory_held),
		Waited:            uint64(out.waited),
		Recovered:         uint64(out.recovered),
		Spool:             SpoolState(out.spool),
		Inherited:         uint32(out.inherited),
		JitdumpLost:       uint64(out.jitdump_lost),
		JitdumpHeld:       uint64(out.jitdump_held),
		JitdumpRewrites:   uint64(out.jitdump_rewrites),
		MapOmitted:        uint64(out.map_omitted),
		Regions:           uint64(out.regions),
		RegionCode:        uint64(out.region_code),
		RegionBytes:       uint64(out.region_bytes),
		RegionGenerations: uint64(out.region_generations),
		RegionLate:        uint64(out.region_late),
		RegionRefused:     uint64(out.region_refused),
		RegionLeftOut:     uint64(out.region_left_out),
		CallsRefused:      uint64(out.calls_refused),
		RegionPutOff:      uint64(out.region_put_off),
		RegionLimit:       uint64(out.region_limit),
		Threads:           uint64(out.threads),
		LinesLeftOut:      uint64(out.lines_left_out),
	}, nil
}
