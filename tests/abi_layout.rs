//! Sizes and offsets of the C structs, frozen. `c-tests/calls/abi.c` has the same numbers for the header; both must hold, or
//! C and Rust disagree about a struct.

use ::jitsym::capi::types::*;
use std::mem::{align_of, offset_of, size_of};

macro_rules! frozen {
    ($type:ident, $size:literal, $align:literal; $($field:ident $offset:literal,)*) => {
        assert_eq!((size_of::<$type>(), align_of::<$type>()), ($size, $align), stringify!($type));
        $(assert_eq!(offset_of!($type, $field), $offset, concat!(stringify!($type), ".", stringify!($field)));)*
    };
}

#[test]
#[cfg(target_pointer_width = "64")]
fn layout() {
    frozen!(jitsym_options, 80, 8;
        struct_size 0, sinks 8, flags 12, map_dir 16, jitdump_dir 24, map_dialect 32, file_mode 36, max_memory 40,
        max_wait_ms 48, reserved 52, spool_dir 56, map_max 64, jitdump_max 72,);
    frozen!(jitsym_line, 24, 8; offset 0, line 4, column 8, reserved 12, file 16,);
    frozen!(jitsym_inline, 48, 8;
        begin 0, end 4, name 8, name_len 16, call_file 24, call_line 32, call_column 36, parent 40, reserved 44,);
    frozen!(jitsym_saved_register, 8, 4; reg 0, offset 4,);
    frozen!(jitsym_unwind_row, 24, 8; offset 0, cfa_reg 4, cfa_offset 8, saved_count 12, saved 16,);
    frozen!(jitsym_unwind, 104, 8;
        struct_size 0, kind 8, flags 12, fp_pushed 16, fp_set 20, epilogue_begin 24, epilogue_end 28, cfa_offset 32,
        saved_count 36, saved 40, saved_from 48, row_count 52, rows 56, row_size 64, eh_frame 72, eh_frame_size 80,
        eh_frame_addr 88, sp_set 96, sp_reset 100,);
    frozen!(jitsym_code, 128, 8;
        struct_size 0, addr 8, size 16, name 24, name_len 32, bytes 40, unwind 48, lines 56, line_count 64, line_size 72,
        flags 80, reserved 84, inlines 88, inline_count 96, inline_size 104, file 112,
        line 120, reserved2 124,);
    frozen!(jitsym_move_target, 32, 8; struct_size 0, addr 8, bytes 16, flags 24, reserved 28,);
    frozen!(jitsym_region_options, 48, 8;
        struct_size 0, size 8, max_size 16, alignment 24, near_addr 32, flags 40, reserved 44,);
    frozen!(jitsym_region, 32, 8; struct_size 0, exec 8, write 16, size 24,);
    frozen!(jitsym_stats, 304, 8;
        struct_size 0, sinks_running 8, sinks_failed 12, registered 16, moved 24, unregistered 32, overwritten 40, live 48,
        dropped 56, unreadable 64, names_changed 72, jitdump_bytes 80, jitdump_records 88, map_bytes 96,
        map_entries 104, map_rewrites 112, map_forgotten 120, write_errors 128, memory 136, memory_held 144, waited 152,
        recovered 160, spool 168, inherited 172, jitdump_lost 176, jitdump_held 184, jitdump_rewrites 192, map_omitted 200,
        regions 208, region_code 216, region_bytes 224, region_generations 232, region_late 240, region_refused 248,
        region_left_out 256, calls_refused 264, region_put_off 272, region_limit 280, threads 288,
        lines_left_out 296,);
}

#[test]
fn numbers() {
    assert_eq!(size_of::<jitsym_id>(), 8);
    assert_eq!(jitsym_limit::JITSYM_NAME_MAX as u32, 1000);
    assert_eq!(jitsym_limit::JITSYM_DIR_MAX as u32, 1023);
    assert_eq!(jitsym_limit::JITSYM_CODE_SIZE_MAX as u32, 0x7fff_ffff);
    assert_eq!(jitsym_sink::JITSYM_SINK_MAP as u32, 1);
    assert_eq!(jitsym_sink::JITSYM_SINK_JITDUMP as u32, 2);
    assert_eq!(jitsym_sink::JITSYM_SINK_REGION as u32, 4);
    assert_eq!(jitsym_sink::JITSYM_SINK_GDB as u32, 8);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_ENV_WINS as u32, 1);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_OFF_BY_DEFAULT as u32, 2);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_NO_UNWIND as u32, 4);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_DROP_WHEN_FULL as u32, 32);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_NO_SPOOL as u32, 64);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_RECOVER as u32, 128);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_FORK_NOW as u32, 256);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_FORK_ALONE as u32, 512);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_REMOVE_FILES as u32, 1024);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_REMEMBER as u32, 2048);
    assert_eq!(jitsym_init_flag::JITSYM_INIT_ADOPT as u32, 4096);
    assert_eq!(jitsym_code_flag::JITSYM_CODE_STABLE as u32, 1);
    assert_eq!(jitsym_range_flag::JITSYM_RANGE_UNMAP as u32, 1);
    assert_eq!(jitsym_region_flag::JITSYM_REGION_ONE_VIEW as u32, 1);
    assert_eq!(jitsym_region_flag::JITSYM_REGION_HUGE_PAGES as u32, 2);
    assert_eq!(jitsym_spool_state::JITSYM_SPOOL_NONE as u32, 0);
    assert_eq!(jitsym_spool_state::JITSYM_SPOOL_SHARED as u32, 1);
    assert_eq!(jitsym_map_dialect::JITSYM_MAP_PERF as u32, 0);
    assert_eq!(jitsym_map_dialect::JITSYM_MAP_SIMPLEPERF as u32, 1);
    assert_eq!(jitsym_unwind_kind::JITSYM_UNWIND_NONE as u32, 0);
    assert_eq!(jitsym_unwind_kind::JITSYM_UNWIND_FRAME_POINTER as u32, 1);
    assert_eq!(jitsym_unwind_kind::JITSYM_UNWIND_FIXED_FRAME as u32, 2);
    assert_eq!(jitsym_unwind_kind::JITSYM_UNWIND_ROWS as u32, 3);
    assert_eq!(jitsym_unwind_kind::JITSYM_UNWIND_EH_FRAME as u32, 4);
    assert_eq!(jitsym_unwind_flag::JITSYM_UNWIND_PACIASP as u32, 1);
    assert_eq!(jitsym_unwind_flag::JITSYM_UNWIND_PACIBSP as u32, 2);
}

#[test]
fn version() {
    let text = env!("CARGO_PKG_VERSION");
    let parts: Vec<u32> = text.split('.').map(|part| part.parse().expect("number")).collect();
    let header = include_str!("../include/jitsym.h");
    for (name, part) in ["MAJOR", "MINOR", "PATCH"].iter().zip(parts) {
        let line = format!("#define JITSYM_VERSION_{name} {part}\n");
        assert!(header.contains(&line), "the header does not have: {line}");
    }
}
