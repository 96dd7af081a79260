//! Writes recordings as `perf record` writes them: samples with registers and stack or with a callchain, and the kernel's events.

use std::io::{Error, IoSlice, Result};
use std::path::Path;

use tracepoint_decode::{
    PerfEventAttr, PerfEventAttrOptions as Options, PerfEventAttrSampleType as Fields, PerfEventAttrSize,
    PerfEventAttrType,
};
use tracepoint_perf::PerfDataFileWriter;

use crate::kernel_events::Event;

/// How a reader is to find the callers of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Graph {
    /// By the frame pointers, which the kernel follows when it takes the sample.
    FramePointers,
    /// By the unwind tables, with a copy of the stack of at most so many bytes.
    Stack(usize),
}

/// What a sample has of its caller's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frames {
    /// Return addresses, the innermost first.
    Chain(Vec<u64>),
    /// The bytes from the stack pointer up.
    Stack(Vec<u8>),
}

/// A moment of a thread.
pub struct Sample<'a> {
    pub pid: u32,
    pub tid: u32,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    pub registers: &'a libc::user_regs_struct,
    pub frames: Frames,
}

/// A file that is being written.
pub struct Recording {
    file: PerfDataFileWriter,
    graph: Graph,
}

const TYPE_SAMPLE: u32 = 9;
const MISC_USER: u32 = 2;
const CPU_CLOCK: u64 = 0;
/// In a callchain: addresses of user space follow.
const CONTEXT_USER: u64 = -512_i64 as u64;
/// By the numbers that perf gives to registers: ax to ss, and r8 to r15.
const REGISTERS: u64 = 0xff_0fff;
const ABI_64: u64 = 2;
const HEADER: usize = 8;

impl Recording {
    pub fn create(path: &Path, graph: Graph) -> Result<Self> {
        let mut file = PerfDataFileWriter::new();
        file.create_file(path.to_str().ok_or_else(|| Error::other("the path is not UTF-8"))?)?;
        let mut fields = Fields::IP.or(Fields::Tid).or(Fields::Time).or(Fields::Callchain).or(Fields::Period);
        let mut attr = PerfEventAttr {
            attr_type: PerfEventAttrType::Software,
            size: PerfEventAttrSize(std::mem::size_of::<PerfEventAttr>() as u32),
            config: CPU_CLOCK,
            // A period of 1.
            sample_time: 1,
            clockid: libc::CLOCK_MONOTONIC as u32,
            ..PerfEventAttr::default()
        };
        // As perf asks the kernel for them; what it does with a record depends on the bits.
        attr.options = [
            Options::Inherit,
            Options::ExcludeKernel,
            Options::Mmap,
            Options::Mmap2,
            Options::Comm,
            Options::CommExec,
            Options::Task,
            Options::SampleIdAll,
            Options::UseClockId,
        ]
        .into_iter()
        .fold(Options::None, Options::or);
        if let Graph::Stack(size) = graph {
            fields = fields.or(Fields::RegsUser).or(Fields::StackUser);
            attr.options = attr.options.or(Options::MmapData).or(Options::ExcludeCallchainUser);
            attr.sample_regs_user = REGISTERS;
            attr.sample_stack_user = size as u32;
        }
        attr.sample_type = fields;
        file.add_event_desc(&[], &attr, "cpu-clock:u");
        Ok(Recording { file, graph })
    }

    pub fn sample(&mut self, sample: &Sample) -> Result<()> {
        let Sample { pid, tid, time, registers, ref frames } = *sample;
        let mut words = vec![0, registers.rip, u64::from(pid) | u64::from(tid) << 32, time, 1];
        let mut stack: &[u8] = &[];
        match (frames, self.graph) {
            (Frames::Chain(callers), Graph::FramePointers) => {
                words.extend([callers.len() as u64 + 2, CONTEXT_USER, registers.rip]);
                words.extend(callers);
            }
            (Frames::Stack(bytes), Graph::Stack(_)) => {
                // perf wants whole words.
                stack = &bytes[..bytes.len() & !7];
                words.extend([0, ABI_64]);
                words.extend(in_perfs_order(registers));
                words.push(stack.len() as u64);
            }
            _ => return Err(Error::other("a sample of another kind than the recording's")),
        }
        let dyn_size = (stack.len() as u64).to_ne_bytes();
        let behind: &[u8] = if matches!(self.graph, Graph::Stack(_)) && !stack.is_empty() { &dyn_size } else { &[] };
        let size = words.len() * 8 + stack.len() + behind.len();
        words[0] = header(TYPE_SAMPLE, MISC_USER, size)?;
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.write(&[&words, stack, behind])
    }

    /// An event that the kernel has reported.
    pub fn event(&mut self, event: &Event) -> Result<()> {
        let Event { kind, misc, pid, tid, time, ref body } = *event;
        let head = header(kind, misc.into(), HEADER + body.len() + 16)?.to_ne_bytes();
        let ids = (u64::from(pid) | u64::from(tid) << 32).to_ne_bytes();
        self.write(&[&head, body, &ids, &time.to_ne_bytes()])
    }

    pub fn finish(mut self) -> Result<()> {
        self.file.set_clockid_header(libc::CLOCK_MONOTONIC as u32);
        self.file.finalize_and_close()
    }

    fn write(&mut self, parts: &[&[u8]]) -> Result<()> {
        let slices: Vec<IoSlice> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let size: usize = parts.iter().map(|part| part.len()).sum();
        if self.file.write_event_data_vectored(&slices)? == size {
            return Ok(());
        }
        Err(Error::other("half a record was written"))
    }
}

fn header(kind: u32, misc: u32, size: usize) -> Result<u64> {
    let size = u16::try_from(size).map_err(|_| Error::other("a record of more than 64 KiB"))?;
    Ok(u64::from(kind) | u64::from(misc) << 32 | u64::from(size) << 48)
}

fn in_perfs_order(of: &libc::user_regs_struct) -> [u64; 20] {
    [
        of.rax, of.rbx, of.rcx, of.rdx, of.rsi, of.rdi, of.rbp, of.rsp, of.rip, of.eflags, of.cs, of.ss, of.r8, of.r9,
        of.r10, of.r11, of.r12, of.r13, of.r14, of.r15,
    ]
}
