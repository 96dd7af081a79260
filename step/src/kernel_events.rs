//! What the kernel reports of a program's mappings, names, threads and forks, from its exec on: a real `perf record` beside it,
//! which takes no samples.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{bail, Context, Result};
use linux_perf_data::linux_perf_event_reader::{RawData, RecordType};
use linux_perf_data::{PerfFileReader, PerfFileRecord};

use crate::recording::Graph;

/// A record of the kernel's. `body` is what is between its header and its sample id.
#[derive(Clone, Debug)]
pub struct Event {
    pub kind: u32,
    pub misc: u16,
    pub pid: u32,
    pub tid: u32,
    /// 0 for what was there when perf came.
    pub time: u64,
    pub body: Vec<u8>,
}

/// perf, while it listens. It does not outlive this.
pub struct Listener {
    perf: Child,
    control: File,
    answer: File,
    dir: PathBuf,
}

const DATA: &str = "kernel.data";
const CONTROL: &str = "kernel.control";
const ANSWER: &str = "kernel.answer";
const LOG: &str = "kernel.log";

impl Listener {
    /// Returns when perf listens to the process, which has executed its program and nothing of it yet. `perf`: the command, up to
    /// and with `record`. `dir`: for files.
    pub fn start(mut perf: Command, pid: u32, graph: Graph, dir: &Path) -> Result<Self> {
        let (control, answer, log) = (dir.join(CONTROL), dir.join(ANSWER), dir.join(LOG));
        for fifo in [&control, &answer] {
            make_fifo(fifo)?;
        }
        perf.args(["-e", "dummy:u", "-k", "CLOCK_MONOTONIC", "-m", "1M", "-B", "-N", "-D", "-1"]);
        // What is mapped without the right to be executed is reported for call graphs by tables alone.
        perf.args(["--call-graph", if graph == Graph::FramePointers { "fp" } else { "dwarf" }]);
        perf.arg(format!("--control=fifo:{},{}", control.display(), answer.display()));
        perf.arg("-o").arg(dir.join(DATA)).args(["-p", &pid.to_string()]);
        perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(log)?);
        // Opened for both directions, so that a perf that has failed does not leave this waiting.
        let open = |path: &Path| File::options().read(true).write(true).open(path);
        let (control, answer) = (open(&control)?, open(&answer)?);
        let perf = perf.spawn().context("cannot start perf")?;
        let mut listener = Listener { perf, control, answer, dir: dir.into() };
        listener.say("enable\n")?;
        Ok(listener)
    }

    /// All that it has heard. To be called when the program has ended or does nothing any more.
    pub fn finish(mut self) -> Result<Vec<Event>> {
        // A perf whose processes have ended has ended too.
        let _ = self.control.write_all(b"stop\n");
        let status = self.perf.wait()?;
        if !status.success() {
            bail!("perf: {status}: {}", self.log());
        }
        let events = read(&self.dir.join(DATA));
        for name in [DATA, CONTROL, ANSWER, LOG] {
            let _ = std::fs::remove_file(self.dir.join(name));
        }
        events
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join(LOG)).unwrap_or_default()
    }

    /// Says a word, and waits until perf has acted.
    fn say(&mut self, word: &str) -> Result<()> {
        use std::os::fd::AsRawFd;
        self.control.write_all(word.as_bytes())?;
        loop {
            let mut poll = libc::pollfd { fd: self.answer.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid pollfd.
            if unsafe { libc::poll(&mut poll, 1, 50) } == 1 {
                break;
            }
            if let Some(status) = self.perf.try_wait()? {
                bail!("perf: {status}: {}", self.log());
            }
        }
        let _ = self.answer.read(&mut [0; 16])?;
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if matches!(self.perf.try_wait(), Ok(None)) {
            let _ = self.perf.kill();
            let _ = self.perf.wait();
        }
    }
}

fn make_fifo(path: &Path) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let _ = std::fs::remove_file(path);
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a string that ends with 0.
    if unsafe { libc::mkfifo(name.as_ptr(), 0o600) } != 0 {
        bail!("{}: {}", path.display(), std::io::Error::last_os_error());
    }
    Ok(())
}

/// The events of a recording, which has to have all that there were.
fn read(data: &Path) -> Result<Vec<Event>> {
    let file = BufReader::new(File::open(data).with_context(|| format!("{}", data.display()))?);
    let PerfFileReader { mut perf_file, mut record_iter } = PerfFileReader::parse_file(file)?;
    let mut events = Vec::new();
    while let Some(record) = record_iter.next_record(&mut perf_file)? {
        let PerfFileRecord::EventRecord { record, .. } = record else { continue };
        let kinds = [RecordType::MMAP, RecordType::MMAP2, RecordType::COMM, RecordType::FORK, RecordType::EXIT];
        if record.record_type == RecordType::LOST {
            bail!("perf has lost events");
        }
        let about = record.common_data()?;
        let (Some(pid), Some(tid)) = (about.pid, about.tid) else { bail!("an event of no process") };
        // The kernel's own mappings are of process -1.
        let body = match record.data {
            RawData::Single(bytes) => bytes.to_vec(),
            RawData::Split(first, second) => [first, second].concat(),
        };
        let of_kernel = body.starts_with(&u32::MAX.to_ne_bytes());
        if !kinds.contains(&record.record_type) || of_kernel {
            continue;
        }
        let ids = usize::from(record.parse_info.common_data_offset_from_end.context("events without a time")?);
        let size = body.len().checked_sub(ids).context("a short event")?;
        events.push(Event {
            kind: record.record_type.0,
            misc: record.misc,
            pid: pid as u32,
            tid: tid as u32,
            time: about.timestamp.unwrap_or_default(),
            body: body[..size].to_vec(),
        });
    }
    Ok(events)
}
