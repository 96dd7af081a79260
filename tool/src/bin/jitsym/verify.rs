//! `jitsym verify`

use std::ffi::OsString;
use std::io::Write;

use crate::Outcome;

/// Run a program, step through its compiled code, and compare unwind tables and code bytes with what is really executed
///
/// The program must write a jitdump or region files: jitsym sets JITSYM=on unless JITSYM is set, and runtimes without libjitsym
/// need their own option. The program computes the same results as without jitsym. A function runs without steps after --calls
/// calls, and the whole program after --seconds. The exit status is 1 if something is wrong, and 2 if nothing could be
/// compared.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym verify --function 'py::*' -- python3.13 -X perf_jit script.py")]
pub struct Verify {
    /// Examine only functions with this name, where * matches any text; can be given several times
    #[arg(short, long = "function", value_name = "NAME")]
    functions: Vec<String>,
    /// Step through N calls of each function (at least 1), but only through 1 call if the function has no unwind tables
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Stop stepping after S seconds, such as 0.5 (above 0; default: no limit)
    #[arg(long, value_name = "S", value_parser = crate::record::seconds)]
    seconds: Option<f64>,
    /// Print JSON instead of text: an object with "findings"; the examined command prints to standard error
    #[arg(long)]
    json: bool,
    /// Run and examine this command with its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs, and prints what was found.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn run(asked: Verify, out: &mut dyn Write) -> Outcome {
    use jitsym_tool::record::{plan, run::exit_code};
    use jitsym_tool::verify::{finding, verify, Options, Patterns};

    let Verify { functions, calls, seconds, json, command } = asked;
    if let Some((_, cause)) = command.first().and_then(|word| plan::refusal(word)) {
        crate::say(format_args!("jitsym: {cause}"));
        return Outcome::Failed;
    }
    let options = Options {
        environment: plan::environment(false, &|name| std::env::var_os(name)),
        functions: Patterns(functions),
        calls,
        seconds: seconds.map(std::time::Duration::from_secs_f64),
        to_stderr: json,
        command,
    };
    let mut progress = crate::progress::Progress::new("functions were stepped".into(), 0, false);
    let verified = verify(&options, &mut |done, total| progress.update_of(done, total));
    drop(progress);
    let (findings, coverage, status) = match verified {
        Ok(verified) => verified,
        Err(error) => {
            crate::say(format_args!("jitsym: {error}"));
            return Outcome::Failed;
        }
    };
    let ended = status.map_or("goes on".into(), |status| match exit_code(status) {
        0 => "ended well".into(),
        code => format!("ended with {code}"),
    });
    let print = if json { finding::json } else { finding::text };
    let printed = crate::written(print(&findings, &coverage, &ended, out));
    let outcome = if coverage.instructions == 0 && findings.is_empty() {
        let _ = out.flush();
        match coverage.registered {
            0 => crate::say("jitsym: no function was registered: the command wrote no jitdump and has no regions"),
            _ => crate::say("jitsym: no registered function was entered"),
        }
        Outcome::Failed
    } else if findings.is_empty() {
        Outcome::Good
    } else {
        Outcome::Found
    };
    outcome.max(printed)
}

/// There is no tracer for other machines.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub fn run(_: Verify, _: &mut dyn Write) -> Outcome {
    crate::say("jitsym: `verify` steps programs on x86-64 Linux alone");
    Outcome::Failed
}
