//! Trampolines under callgrind.

use std::collections::BTreeMap;
use std::process::Command;

use super::{valgrinds, Profile};
use crate::support::{describe, fresh_dir, stdout, try_run};
use crate::trampolines::{interpreter, TABLES};

/// The functions of a script are callers and callees of the interpreter's functions, with exact numbers of calls and of
/// instructions.
#[test]
fn functions_of_a_script() {
    const COUNT: u64 = 7;
    for (number, valgrind) in valgrinds().iter().enumerate() {
        let dir = fresh_dir(format!("script-{number}"));
        let out = dir.join("out");
        let mut command = Command::new(valgrind);
        command.args(["--tool=callgrind", "-q", &format!("--callgrind-out-file={}", out.display())]);
        command.arg(interpreter(TABLES)).arg(&dir).args(["times", &COUNT.to_string()]).env("JITSYM_DIR", &dir);
        let output = try_run(command.env_remove("JITSYM"));
        assert!(stdout(&output).ends_with("ok\n") && output.stderr.is_empty(), "{}", describe(&command, &output));

        let profile = Profile::read(&out);
        // callgrind gives a function that is called by itself, or by what it has called, a second name.
        let [module, outer, middle, inner, again] =
            [("module", "1"), ("outer", "10"), ("middle", "20"), ("inner", "30"), ("inner", "30'2")]
                .map(|(name, line)| format!("{name} {}/script.toy:{line}", dir.display()));
        let calls = |calls: &BTreeMap<String, (u64, u64)>| -> BTreeMap<String, u64> {
            calls.iter().map(|(name, (count, _))| (name.clone(), *count)).collect()
        };
        let one = |name: &str, count: u64| BTreeMap::from([(name.to_owned(), count)]);
        // How often each function is called and by whom, whom it calls, and how many instructions it has.
        for (name, count, caller, callee, instructions) in [
            (&module, COUNT, "run", "enter", 7),
            (&outer, COUNT, "enter", "interpret", 12),
            (&middle, COUNT, "interpret", "interpret'2", 14),
            (&inner, COUNT, "interpret'2", "interpret'2", 12),
            (&again, 2 * COUNT, "interpret'2", "interpret'2", 12),
        ] {
            let function = profile.function(name);
            assert_eq!(calls(&function.callers), one(caller, count), "{name}: {}", profile.text);
            assert_eq!(calls(&function.callees), one(callee, count), "{name}: {}", profile.text);
            let called: u64 = function.callees.values().map(|(_, cost)| cost).sum();
            assert_eq!(function.cost - called, instructions * count, "{name}: {}", profile.text);
        }
        assert_eq!(profile.function("reached").callers.get("interpret'2").map(|call| call.0), Some(COUNT));
        std::fs::remove_dir_all(&dir).expect("remove the directory");
    }
}
