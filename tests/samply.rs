//! Real samply: what its viewer shows. The profile and the names come from samply's own server, as the viewer gets them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{json, Value};

use crate::perf;
use crate::support::{fetched, fresh_dir, is_root, run, stdout, until_enough, wait_until};
use crate::trampolines::{bare, check_stack, interpreter, POINTERS};

/// The server of samply, which ends with this.
struct Server {
    child: Child,
    /// `ADDRESS:PORT`, and the path below which the server answers.
    address: String,
    path: String,
}

impl Server {
    /// Serves a recording of perf.
    fn of_recording(data: &Path) -> Server {
        let log = data.with_extension("log");
        let out = File::create(&log).expect("a log");
        let mut samply = Command::new(fetched("samply"));
        samply.args(["import", "--no-open"]).arg("-o").arg(data.with_extension("json")).arg(data);
        samply.stdin(Stdio::null()).stdout(out.try_clone().expect("a log")).stderr(out);
        let mut server = Server { child: samply.spawn().expect("samply"), address: String::new(), path: String::new() };
        let url = || {
            let text = std::fs::read_to_string(&log).expect("a log");
            let (_, rest) = text.split_once("symbolServer=http%3A%2F%2F")?;
            rest.split_once('\n').map(|(url, _)| url.replace("%3A", ":").replace("%2F", "/"))
        };
        wait_until("the server", || url().is_some());
        let url = url().expect("a line");
        let (address, path) = url.split_once('/').expect("a path");
        (server.address, server.path) = (address.into(), format!("/{path}"));
        server
    }

    /// The answer to a request, with a body or without.
    fn ask(&self, what: &str, body: Option<&Value>) -> Value {
        let mut stream = TcpStream::connect(&self.address).expect("connected");
        let (method, body) = body.map_or(("GET", String::new()), |body| ("POST", body.to_string()));
        write!(
            stream,
            "{method} {}/{what} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            self.path,
            body.len()
        )
        .expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let begin = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        serde_json::from_slice(&answer[begin..]).unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// The stacks of all samples of the first thread, the outermost function first.
    fn stacks(&self) -> Vec<Vec<String>> {
        let profile = self.ask("profile.json", None);
        let libraries: Vec<&Value> = profile["libs"].as_array().expect("libraries").iter().collect();
        let threads = profile["threads"].as_array().expect("threads");
        let thread = threads.iter().max_by_key(|thread| thread["samples"]["length"].as_u64()).expect("a thread");
        let at = |table: &str, column: &str, row: u64| thread[table][column][row as usize].as_u64();
        let frames = |sample: &Value| {
            let (mut frames, mut stack) = (Vec::new(), sample.as_u64());
            while let Some(row) = stack {
                let frame = at("stackTable", "frame", row).expect("a frame");
                let function = at("frameTable", "func", frame).expect("a function");
                let resource = at("funcTable", "resource", function);
                let library = resource.and_then(|resource| at("resourceTable", "lib", resource));
                if let (Some(library), Some(address)) = (library, at("frameTable", "address", frame)) {
                    frames.push(json!([library, address]));
                }
                stack = at("stackTable", "prefix", row);
            }
            frames.reverse();
            frames
        };
        let samples = thread["samples"]["stack"].as_array().expect("samples");
        let stacks: Vec<Vec<Value>> = samples.iter().map(frames).collect();
        let names = libraries.iter().map(|library| json!([library["debugName"], library["breakpadId"]]));
        let question = json!({"memoryMap": names.collect::<Vec<_>>(), "stacks": stacks});
        let answer = self.ask("symbolicate/v5", Some(&question));
        let stacks = answer["results"][0]["stacks"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let name = |frame: &Value| frame["function"].as_str().unwrap_or("?").to_owned();
        stacks.iter().map(|stack| stack.as_array().expect("frames").iter().map(name).collect()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The functions of a script are between the functions of the interpreter.
#[test]
fn functions_of_a_script() {
    let dir = fresh_dir("samply-script");
    let data = dir.join("perf.data");
    let found = until_enough(100, |pace| {
        let mut record = perf::perf("record");
        record.args(["-e", "cpu-clock", "-F", "999", "-m", "4M", "--call-graph", "fp", "-o"]).arg(&data).arg("--");
        record.arg(interpreter(POINTERS)).arg(&dir).args(["spin", &(500 * pace).to_string()]);
        perf::whole(&data, || run(record.env("JITSYM", "region").env("JITSYM_DIR", &dir)));
        let mut inside = 0;
        for stack in Server::of_recording(&data).stacks() {
            let Some(main) = stack.iter().position(|name| name == "main") else { continue };
            let names: Vec<&str> = stack[main..].iter().map(|name| bare(name)).collect();
            inside += usize::from(check_stack(&names, true).is_some());
        }
        (inside, inside)
    });
    assert!(found >= 100, "{found}");
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

/// A marker in a profile: its kind, its text, and its begin and end in milliseconds.
type Marker = (String, String, f64, f64);

/// The markers of a profile that `samply` wrote, except for those of mappings.
fn markers(profile: &Path) -> Vec<Marker> {
    let profile: Value = serde_json::from_slice(&std::fs::read(profile).expect("a profile")).expect("JSON");
    let of_thread = |thread: &Value| {
        let (markers, strings) = (&thread["markers"], &thread["stringArray"]);
        let one = |(row, data): (usize, &Value)| {
            let text = data["name"].as_u64().or(data["n"].as_u64()).and_then(|text| strings[text as usize].as_str());
            let time = |column: &str| markers[column][row].as_f64().expect("a time");
            let kind = data["type"].as_str().expect("a kind").to_owned();
            (kind, text.unwrap_or_default().to_owned(), time("startTime"), time("endTime"))
        };
        markers["data"].as_array().expect("markers").iter().enumerate().map(one).collect::<Vec<_>>()
    };
    let threads = profile["threads"].as_array().expect("threads");
    threads.iter().flat_map(of_thread).filter(|(kind, ..)| kind != "mmap").collect()
}

/// `samply record`, before the program's name.
fn record(profile: &Path, dir: &Path) -> Command {
    let level = dir.join("level");
    std::fs::write(&level, "1").expect("a file");
    // Where the processor's counters cannot be opened, samply looks at this setting. If the number is larger, samply believes that
    // the setting is the reason, also if it runs as root. So samply sees a smaller number. The setting itself stays.
    let script = "mount --bind \"$1\" /proc/sys/kernel/perf_event_paranoid && shift && exec \"$@\"";
    let mut samply = Command::new("unshare");
    samply.args(["--mount", "sh", "-c", script, "sh"]).arg(level).arg(fetched("samply"));
    samply.args(["record", "--jit-markers", "--save-only", "--no-open", "-o"]).arg(profile).arg("--");
    samply
}

/// The spans of a marker file are in the profile, with their times. `--jit-markers` shows when code was registered.
#[test]
fn spans_and_registrations() {
    if !is_root("have a namespace of mounts") {
        return;
    }
    for imported in [false, true] {
        let dir = fresh_dir(if imported { "samply-imported-spans" } else { "samply-spans" });
        let (profile, data) = (dir.join("profile.json"), dir.join("perf.data"));
        let mut command = if imported { perf::perf("record") } else { record(&profile, &dir) };
        if imported {
            command.args(["-e", "cpu-clock", "-k", "1", "-o"]).arg(&data).arg("--");
        }
        command.arg(crate::docs::spans()).arg(&dir).env("JITSYM", "jitdump").env("JITSYM_DIR", &dir);
        let printed = stdout(&run(&mut command));
        if imported {
            let mut samply = Command::new(fetched("samply"));
            samply.args(["import", "--jit-markers", "--save-only", "--no-open", "-o"]).arg(&profile);
            run(samply.arg(&data));
        }
        let is_span =
            |line: &&str| line.split(' ').count() > 2 && line.starts_with(|first: char| first.is_ascii_digit());
        let expected: Vec<(String, f64, f64)> = printed
            .lines()
            .filter(is_span)
            .map(|line| {
                let words: Vec<&str> = line.splitn(3, ' ').collect();
                let time = |word: &str| word.parse::<u64>().expect("a time") as f64 / 1e6;
                (words[2].to_owned(), time(words[0]), time(words[1]))
            })
            .collect();
        assert_eq!(expected.len(), 3, "{printed}");
        let found = markers(&profile);
        let spans: Vec<&Marker> =
            found.iter().filter(|(kind, text, ..)| kind == "SimpleMarker" && !text.starts_with('x')).collect();
        assert_eq!(spans.len(), expected.len(), "{found:?}");
        // A profile has times since its own beginning.
        let shift = spans[0].2 - expected[0].1;
        for ((_, text, begin, end), (name, from, to)) in spans.into_iter().zip(&expected) {
            assert_eq!(text, name);
            assert!((begin - from - shift).abs() < 0.001 && (end - to - shift).abs() < 0.001, "{found:?}: {printed}");
            // Each function was registered after its compilation.
            let mut added = found.iter().filter(|(kind, added, ..)| kind == "JitFunctionAdd" && added == name);
            assert!(added.next().is_some_and(|(_, _, time, _)| time - from - shift >= 30.0), "{found:?}: {printed}");
        }
        std::fs::remove_dir_all(&dir).expect("remove the directory");
    }
}
