//! The rules of `jitsym check`. Each rule is a way in which a file makes a reader fail.

/// The files that a rule concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `jit-PID.dump`
    Jitdump,
    /// `perf-PID.map`
    PerfMap,
    /// Jitdumps and perf maps.
    Both,
}

impl Format {
    /// The printed name.
    pub fn name(self) -> &'static str {
        match self {
            Format::Jitdump => "jitdump",
            Format::PerfMap => "perf map",
            Format::Both => "both",
        }
    }
}

/// The severity of a broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Odd, but harmless to all known readers.
    Note,
    /// Some readers or versions lose data, or a detail is lost.
    Warning,
    /// Code is lost or misattributed by perf, or by a reader that uses no other part of the file instead.
    Error,
}

impl Severity {
    /// The printed name.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// One rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name, which does not change between versions.
    pub id: &'static str,
    /// The files that the rule concerns.
    pub format: Format,
    /// The severity.
    pub severity: Severity,
    /// The affected readers, separated by commas.
    pub readers: &'static str,
    /// A sentence that explains the rule.
    pub text: &'static str,
}

macro_rules! rules {
    ($($name:ident $id:literal $format:ident $severity:ident $readers:literal $text:literal)*) => {
        $(
            #[doc = $text]
            pub static $name: Rule = Rule {
                id: $id,
                format: Format::$format,
                severity: Severity::$severity,
                readers: $readers,
                text: $text,
            };
        )*
        /// All rules, in the order in which they are listed.
        pub static ALL: &[&Rule] = &[$(&$name),*];
    };
}

/// The rule of this name.
pub fn find(id: &str) -> Option<&'static Rule> {
    ALL.iter().copied().find(|rule| rule.id == id)
}

rules! {
    // ---- where the file lies ----
    DUMP_NAME "dump-name" Jitdump Error "perf"
        "A dump is found by its name: perf takes only jit-PID.dump with decimal digits; samply and ddprof want jit-*.dump."
    DUMP_NAME_PID "dump-name-pid" Jitdump Error "perf 6"
        "perf 6 takes a dump only if the number in its name is the process that has it mapped."
    DUMP_DIR "dump-dir" Jitdump Warning "perf 7, CodSpeed"
        "perf built with libdw finds no call stacks through a dump that does not lie directly in /tmp."
    MAP_NAME "map-name" PerfMap Error "all"
        "A map is found by its name, perf-PID.map, and by nothing else."
    MAP_DIR "map-dir" PerfMap Warning "perf, samply, blazesym, bcc, ddprof, parca"
        "Maps are looked for in /tmp only."
    FILE_MODE "file-mode" Both Note "any profiler of another user"
        "Others than the owner may not read the file."

    // ---- jitdump: header ----
    BAD_MAGIC "bad-magic" Jitdump Error "all"
        "A jitdump begins with a magic number; one that does not makes `perf inject` fail as a whole."
    HEADER_TORN "header-torn" Jitdump Error "all"
        "The file ends within its header, which makes `perf inject` fail as a whole."
    BYTE_ORDER "byte-order" Jitdump Warning "perf"
        "perf reads line tables of the other byte order wrongly."
    HEADER_SIZE "header-size" Jitdump Error "perf"
        "perf takes every header for 40 bytes, and what follows for the first record."
    HEADER_VERSION "header-version" Jitdump Error "perf"
        "A version above 1 makes `perf inject` fail as a whole."
    HEADER_VERSION_ZERO "header-version-zero" Jitdump Note "none known"
        "The version is 1."
    HEADER_FLAGS "header-flags" Jitdump Error "perf"
        "A flag other than bit 0 makes `perf inject` fail as a whole."
    ARCH_TIMESTAMP "arch-timestamp" Jitdump Note "all but perf with Intel PT"
        "Time stamps are raw counter values, which only recordings that can convert them are compared with."
    MACHINE_ZERO "machine-zero" Jitdump Warning "samply"
        "Without a machine, readers other than perf cannot know the architecture of the code."
    MACHINE_UNKNOWN "machine-unknown" Jitdump Warning "samply"
        "The machine is none of those that Linux runs on."
    HEADER_PID_ZERO "header-pid-zero" Jitdump Warning "samply"
        "The header does not say which process the dump is of."
    HEADER_TIME_ZERO "header-time-zero" Jitdump Note "samply"
        "samply tells dumps apart by process, time and machine, and this one does not say when it was begun."
    HEADER_WALL_CLOCK "header-wall-clock" Jitdump Note "none known"
        "The time in the header is of another clock than that of the records."
    NO_CODE "no-code" Jitdump Note "none known"
        "The file tells of no code at all."

    // ---- jitdump: records ----
    RECORD_16_BYTES "record-16-bytes" Jitdump Error "perf"
        "perf stops reading, without a word, at a record that is nothing but a prefix."
    RECORD_TOO_SMALL "record-too-small" Jitdump Error "all"
        "A record that announces less than its prefix of 16 bytes ends the file for every reader, or makes it fail."
    RECORD_SHORT "record-short" Jitdump Error "all"
        "The record is too short for what its kind must say."
    TRUNCATED "truncated" Jitdump Error "all"
        "The file ends within a record, and what that told of is lost; everything before it can be read."
    ZERO_TAIL "zero-tail" Jitdump Warning "parca, programs with linux-perf-data"
        "perf stops at zeros behind the records; others take them for records of no size."
    RECORD_UNALIGNED "record-unaligned" Jitdump Note "none known"
        "The size of the record is not a multiple of 8; no reader that is known wants it to be."
    RECORD_UNKNOWN "record-unknown" Jitdump Warning "ddprof, parca"
        "perf skips a kind of record that it does not know; ddprof stops at it, and parca loses its place."
    CLOSE_NOT_LAST "close-not-last" Jitdump Error "perf, samply, ddprof, parca"
        "Behind a JIT_CODE_CLOSE nothing is read, and samply forgets all code."
    CLOSE_LAST "close-last" Jitdump Note "none known"
        "A JIT_CODE_CLOSE as the last record does no harm, and no good."
    CODE_MOVE "code-move" Jitdump Error "perf 7, perf 6, ddprof, parca"
        "perf 7.2 crashes on JIT_CODE_MOVE, perf 6 finds no call stacks through moved code, ddprof stops, parca ignores it."
    TIME_BACKWARDS "time-backwards" Jitdump Warning "samply"
        "samply reads in the order of the file, and holds a record back until the time of the one before it."
    TIME_WALL_CLOCK "time-wall-clock" Jitdump Error "perf, samply"
        "Samples carry CLOCK_MONOTONIC; with records stamped by the clock on the wall perf names nothing at all."
    TIME_BEFORE_HEADER "time-before-header" Jitdump Note "none known"
        "The record is older than the file."

    // ---- jitdump: JIT_CODE_LOAD ----
    NAME_UNTERMINATED "name-unterminated" Jitdump Error "all"
        "The name has no NUL within its record."
    CODE_SIZE_TOO_LARGE "code-size-too-large" Jitdump Error "perf, samply, ddprof, parca"
        "There are fewer bytes of code in the record than it announces; perf reads whatever lies before them."
    CODE_SIZE_LIMIT "code-size-limit" Jitdump Error "perf"
        "perf holds the size of code in 31 bits."
    CODE_SUM "code-sum" Jitdump Warning "samply"
        "samply counts the bytes of all code in 32 bits."
    CODE_SIZE_ZERO "code-size-zero" Jitdump Warning "all"
        "Code of no size names no address."
    PADDING_AFTER_CODE "padding-after-code" Jitdump Error "perf"
        "perf takes the code from the end of its record, and so takes padding for code."
    PADDING_AFTER_NAME "padding-after-name" Jitdump Warning "ddprof, parca, samply"
        "Readers other than perf take the code from behind the name, and so take padding for code."
    VMA_DIFFERS "vma-differs" Jitdump Warning "CodSpeed"
        "Some readers take `vma` for the address of the code, others `code_addr`."
    LOAD_PID "load-pid" Jitdump Error "perf"
        "perf gives the code to the process that its record names, which is not that of the header."
    LOAD_TID_ZERO "load-tid-zero" Jitdump Note "none known"
        "The record does not say which thread made the code."
    INDEX_REUSED "index-reused" Jitdump Error "perf"
        "perf names its objects by the code index: with one used twice, both pieces of code show the later name."
    ADDRESS_RANGE "address-range" Jitdump Error "all"
        "No code of a process can lie there."
    NAME_EMPTY "name-empty" Jitdump Warning "all"
        "Code without a name is shown as if nothing were known of it."
    NAME_NOT_UTF8 "name-not-utf8" Jitdump Warning "samply"
        "A name that is not UTF-8 is an empty one to samply."
    NAME_CONTROL "name-control" Jitdump Warning "perf"
        "Control characters in a name tear the lines of reports, and act on terminals."
    NAME_DEMANGLED "name-demangled" Jitdump Note "perf"
        "perf takes the name for a mangled one (C++, Rust, OCaml, Java) and shows another."
    NAME_TYPE_CODE "name-type-code" Jitdump Warning "perf 6.12, perf 7"
        "perf from 6.12 on takes the name for that of a C++ type in its short form, and shows `float` for `f`."
    NAME_LONG "name-long" Jitdump Note "none known"
        "Names above 1000 bytes are of little use in a report."
    LOAD_OVERLAP "load-overlap" Jitdump Note "none known"
        "The code lies where other code was: from here on the place has the new name, as it should if the old code is gone."
    LOAD_OVERLAP_SAME_TIME "load-overlap-same-time" Jitdump Warning "perf, samply"
        "Two pieces of code take the same place at the same time; which one wins is a matter of chance."
    LOAD_SWALLOWS "load-swallows" Jitdump Error "all"
        "The code has all bytes of other code in that one's place: its size is too large, and its name hides the other one."

    // ---- jitdump: JIT_CODE_DEBUG_INFO ----
    DEBUG_DANGLING "debug-dangling" Jitdump Error "perf"
        "perf gives a line table to the next JIT_CODE_LOAD, whatever that is; it has to stand directly before its own."
    DEBUG_ADDRESS "debug-address" Jitdump Error "perf"
        "The line table is for another address than the code behind it, which perf gives it to."
    DEBUG_TORN "debug-torn" Jitdump Error "all"
        "The record has fewer entries than it announces."
    DEBUG_EMPTY "debug-empty" Jitdump Note "none known"
        "The line table has no entry."
    DEBUG_BIAS "debug-bias" Jitdump Warning "perf, samply"
        "The addresses are 0x40 too high, as very old versions of perf wanted them; with others each line is shown 64 bytes late."
    DEBUG_OUTSIDE "debug-outside" Jitdump Warning "all"
        "The entry's address does not lie in the code."
    DEBUG_UNSORTED "debug-unsorted" Jitdump Warning "samply"
        "Entries are looked up by halving, so they have to stand in the order of their addresses."
    DEBUG_NO_END "debug-no-end" Jitdump Warning "perf"
        "perf ends the table at its last entry, which so covers nothing; one at the end of the code has to follow."
    DEBUG_LINE_ZERO "debug-line-zero" Jitdump Warning "all"
        "Lines count from 1."
    DEBUG_SAME_FILE "debug-same-file" Jitdump Error "perf 6.1, samply, ddprof, parca"
        "The file name is the byte 0xff, short for the one before; only some versions of perf know that."
    DEBUG_FILE_EMPTY "debug-file-empty" Jitdump Warning "all"
        "The entry has no file name."
    DEBUG_FILE_NOT_UTF8 "debug-file-not-utf8" Jitdump Warning "samply"
        "The file name is not UTF-8."
    DEBUG_FILE_CONTROL "debug-file-control" Jitdump Warning "perf"
        "Control characters in a file name tear the lines of reports, and act on terminals."
    DEBUG_FILE_RELATIVE "debug-file-relative" Jitdump Note "perf"
        "The path is relative: perf finds the source only from the directory that it counts from."

    // ---- jitdump: DEBUG_INFO2, which samply's branch reads ----
    INLINES_PRESENT "inlines-present" Jitdump Note "ddprof, parca, perf"
        "perf skips a record of inlined functions with a warning; ddprof stops at it, and parca loses its place."
    INLINES_DANGLING "inlines-dangling" Jitdump Error "branch support-inlines of samply"
        "samply gives inlined functions to the next JIT_CODE_LOAD, whatever that is; they have to come before the LOAD of their own code."
    INLINES_ADDRESS "inlines-address" Jitdump Error "branch support-inlines of samply"
        "The inlined functions are for another address than the code behind them, which samply gives them to."
    INLINES_TORN "inlines-torn" Jitdump Error "branch support-inlines of samply"
        "The record has less than it announces; samply takes nothing from it, and no lines from elsewhere."
    INLINES_EMPTY "inlines-empty" Jitdump Warning "branch support-inlines of samply"
        "There is no code offset; samply finds no lines, and does not look for them elsewhere."
    INLINES_START "inlines-start" Jitdump Warning "branch support-inlines of samply"
        "The first code offset is not 0; samply finds no lines for the code before it, and does not look for them elsewhere."
    INLINES_OUTSIDE "inlines-outside" Jitdump Warning "branch support-inlines of samply"
        "The code offset does not lie in the code."
    INLINES_UNSORTED "inlines-unsorted" Jitdump Warning "branch support-inlines of samply"
        "Code offsets are looked up by halving, so each has to be above the one before."
    INLINES_INDEX "inlines-index" Jitdump Error "branch support-inlines of samply"
        "The index of a position or string is too large; samply leaves out the frame, name or file."
    INLINES_CIRCLE "inlines-circle" Jitdump Error "branch support-inlines of samply"
        "The callers of a position lead back to it; samply follows them until memory is used up."

    // ---- jitdump: JIT_CODE_UNWINDING_INFO ----
    UNWIND_PRESENT "unwind-present" Jitdump Note "ddprof"
        "ddprof stops reading at the first unwinding record; perf finds call stacks by them."
    UNWIND_MISSING "unwind-missing" Jitdump Note "perf, CodSpeed"
        "Call stacks go through code without unwind tables only by frame pointers."
    UNWIND_DANGLING "unwind-dangling" Jitdump Error "perf"
        "perf gives unwind tables to the next JIT_CODE_LOAD, whatever that is; they have to stand directly before their own."
    UNWIND_SIZE "unwind-size" Jitdump Error "all"
        "The sizes of the tables contradict each other, or that of the record."
    UNWIND_PADDING "unwind-padding" Jitdump Note "none known"
        "There are bytes behind the tables in the record, which perf copies and nobody reads."
    UNWIND_HDR_ZERO "unwind-hdr-zero" Jitdump Error "perf"
        "Tables without .eh_frame_hdr are not dropped behind their code: perf gives them to all that follows."
    UNWIND_ORDER "unwind-order" Jitdump Error "perf"
        ".eh_frame_hdr comes first, as the specification has it; perf reads .eh_frame first, and no perf unwinds with that."
    UNWIND_EMPTY "unwind-empty" Jitdump Note "none known"
        "The tables describe no code."
    UNWIND_HDR "unwind-hdr" Jitdump Error "perf"
        "The search table .eh_frame_hdr does not lead to the entries of .eh_frame."
    UNWIND_HDR_FORM "unwind-hdr-form" Jitdump Note "none known"
        "Version, encodings or pointer of .eh_frame_hdr are not as they should be, which perf does not look at."
    UNWIND_CFI "unwind-cfi" Jitdump Error "perf"
        "The unwind table cannot be decoded."
    UNWIND_LSDA "unwind-lsda" Jitdump Note "readers that use gimli"
        "There is an encoding `none` for pointers to language-specific data, which gimli refuses; libunwind reads it as there being none."
    UNWIND_FDE_BASE "unwind-fde-base" Jitdump Error "perf"
        "perf puts .eh_frame at the first multiple of 8 behind the code; the entry's address does not lead to the code from there."
    UNWIND_FDE_RANGE "unwind-fde-range" Jitdump Warning "perf"
        "The entries cover more or less than the code."
    UNWIND_FRAME_POINTER "unwind-frame-pointer" Jitdump Error "perf"
        "The tables are those of code with a frame pointer, and this code sets none up: no call stack through it is right."
    UNWIND_CFA_WRONG "unwind-cfa-wrong" Jitdump Error "perf"
        "The instructions put the caller's stack pointer (CFA) elsewhere than the row says, and call stacks end or go astray there."
    UNWIND_EPILOGUE "unwind-epilogue" Jitdump Warning "perf"
        "The row for the end of the function begins or ends at the wrong instruction: call stacks from between are wrong."
    UNWIND_RETURN_ADDRESS "unwind-return-address" Jitdump Error "perf"
        "The instructions put the return address elsewhere than the row says, or sign it: call stacks end or go astray there."
    UNWIND_SAVED_REGISTER "unwind-saved-register" Jitdump Warning "perf"
        "The instructions put a register of the caller elsewhere than the row says; callers whose frames count from it are lost."
    UNWIND_NO_TERMINATOR "unwind-no-terminator" Jitdump Warning "perf"
        "A word of zero has to end .eh_frame: readers that go through it entry by entry run on behind it."
    UNWIND_BEHIND_TERMINATOR "unwind-behind-terminator" Jitdump Warning "perf"
        "There is more in .eh_frame behind the zero word that ends it, which nobody reads."
    UNWIND_LENGTH "unwind-length" Jitdump Error "perf"
        "perf aligns .eh_frame_hdr to 4, so that the addresses in it count from elsewhere if .eh_frame is not a multiple of 4 long."
    UNWIND_NOT_MAPPED "unwind-not-mapped" Jitdump Note "perf 6 with libunwind"
        "After `perf inject`, builds of perf with libunwind find no tables with mapped_size 0. After `jitsym inject` they find all tables."
    UNWIND_MAPPED_SHORT "unwind-mapped-short" Jitdump Warning "perf 6 with libunwind"
        "mapped_size is less than the tables are long, so that not all of them can be read."
    MAPPED_OVER_EARLIER "mapped-over-earlier" Jitdump Warning "perf"
        "With mapped_size the mapping reaches over code that was there before, whose names vanish unless it is gone."
    MAPPED_OVER_LATER "mapped-over-later" Jitdump Warning "perf 6 with libunwind"
        "Later code lies where mapped_size put the tables of other code, which cannot be unwound from then on."

    // ---- perf map ----
    MAP_EMPTY "map-empty" PerfMap Note "none known"
        "The map has no line."
    MAP_LINE "map-line" PerfMap Error "blazesym, magic-trace, perf"
        "The line is not `START SIZE NAME` with two hexadecimal numbers: perf skips it, blazesym gives up the file."
    MAP_NAME_MISSING "map-name-missing" PerfMap Error "blazesym, perf"
        "The line has no name: perf skips it, blazesym gives up the file."
    MAP_0X "map-0x" PerfMap Error "blazesym, ddprof"
        "blazesym gives up the file for a number with 0x; only Android's simpleperf wants it."
    MAP_UPPER_CASE "map-upper-case" PerfMap Note "none known"
        "Digits are lower-case letters in what other producers write."
    MAP_ADDRESS_DIGITS "map-address-digits" PerfMap Warning "ddprof"
        "ddprof reads no address of more than 16 characters."
    MAP_SIZE_DIGITS "map-size-digits" PerfMap Warning "ddprof"
        "ddprof reads no size of more than 8 characters."
    MAP_SEPARATOR "map-separator" PerfMap Warning "perf, bcc, blazesym, hotspot"
        "One space has to stand between the fields: perf makes a second one part of the name, bcc wants no tab."
    MAP_SIZE_ZERO "map-size-zero" PerfMap Error "all"
        "A line of size 0 names no code."
    MAP_ADDRESS_ZERO "map-address-zero" PerfMap Warning "bcc"
        "bcc takes no line that begins at 0."
    MAP_ADDRESS_RANGE "map-address-range" PerfMap Error "all"
        "The code would end behind the last address."
    MAP_NAME_SHORT "map-name-short" PerfMap Error "perf"
        "perf drops names of fewer than three bytes."
    MAP_NAME_STUB "map-name-stub" PerfMap Warning "ddprof"
        "ddprof drops names that begin with `stub<`."
    MAP_NAME_CUT "map-name-cut" PerfMap Note "ddprof"
        "ddprof cuts names at 300 bytes, and at a tab."
    MAP_LINE_LONG "map-line-long" PerfMap Error "parca"
        "parca gives up the file for a line of more than 4096 bytes."
    MAP_NOT_UTF8 "map-not-utf8" PerfMap Error "samply, blazesym"
        "samply and blazesym give up the whole file for one byte that is not UTF-8."
    MAP_CR "map-cr" PerfMap Warning "perf, blazesym"
        "A carriage return becomes part of the name, and ends the line for blazesym."
    MAP_NUL "map-nul" PerfMap Error "perf, bcc"
        "A NUL byte ends the name."
    MAP_CONTROL "map-control" PerfMap Warning "perf"
        "Control characters in a name tear the lines of reports, and act on terminals."
    MAP_TORN "map-torn" PerfMap Error "perf, blazesym"
        "The last line has no newline: perf cuts the last byte of its name, blazesym gives up the file if it is half a line."
    MAP_BLANK_LINE "map-blank-line" PerfMap Note "none known"
        "An empty line says nothing."
    MAP_OVERLAP "map-overlap" PerfMap Error "all"
        "Two lines claim the same addresses; a map has no time, and each reader picks another one."
    MAP_DUPLICATE "map-duplicate" PerfMap Note "none known"
        "The line is there twice."
}
