//! Builds the tests and the programs that they use, and lists the tests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, Context, Result};
use serde_json::Value;

use super::jobs::Job;
use super::{Built, Tier};
use crate::program::{cargo, root};
use crate::run;

/// A program with tests.
pub struct Binary {
    /// What stands before the names of its tests: `lib` or the folder of their crate for unit tests, nothing for those in `tests`, and
    /// otherwise the name of their file.
    pub suite: String,
    pub path: PathBuf,
    /// The folder of its crate, in which cargo runs it.
    pub dir: PathBuf,
}

/// All packages at once, as in scripts/test.sh: their dependencies would have other features otherwise, and be built once more.
const WORKSPACE: [&str; 3] = ["--workspace", "--exclude", "jitsym-models"];
/// It takes as long to build as a seventh of everything.
const IN_ALL: [&str; 2] = ["--exclude", "jitsym-cranelift"];

fn packages(tier: Tier) -> impl Iterator<Item = &'static str> {
    WORKSPACE.into_iter().chain(IN_ALL.into_iter().filter(move |_| tier != Tier::All))
}

/// Builds the tests and the program `jitsym`.
pub fn build(tier: Tier) -> Result<Built> {
    let mut built = Built {
        binaries: Vec::new(),
        tool: PathBuf::new(),
        tier,
        run: format!("{}-{}", std::process::id(), run::now()),
    };
    let mut cargo = cargo();
    cargo.args(["test", "--quiet", "--locked", "--no-run", "--message-format=json-render-diagnostics"]);
    cargo.args(packages(tier));
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("cargo")?;
    for line in BufReader::new(child.stdout.take().context("output of cargo")?).lines() {
        if let Ok(message) = serde_json::from_str(&line?) {
            built.note(&message);
        }
    }
    if !child.wait()?.success() {
        bail!("the tests cannot be built");
    }
    Ok(built)
}

impl Built {
    fn note(&mut self, message: &Value) {
        let (Some(path), target) = (message["executable"].as_str(), &message["target"]) else { return };
        let name = target["name"].as_str().unwrap_or_default();
        if message["profile"]["test"] == true {
            let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
            let dir: PathBuf = manifest.parent().unwrap_or(root()).into();
            // Unit tests of a crate are called like its folder.
            let folder = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let suite = match target["kind"][0].as_str() {
                Some("test") if dir == root() => String::new(),
                Some("test") => name.into(),
                _ if dir == root() => "lib".into(),
                _ => folder,
            };
            self.binaries.push(Binary { suite, path: path.into(), dir });
        } else if name == "jitsym" && target["kind"][0] == "bin" {
            self.tool = path.into();
        }
    }

    /// All tests.
    pub fn jobs(&self) -> Result<Vec<Job>> {
        let tier = self.tier;
        let mut jobs = Vec::new();
        for binary in &self.binaries {
            let mut list = Command::new(&binary.path);
            let text = run::stdout(list.current_dir(&binary.dir).args(["--list", "--format", "terse"]))?;
            for test in text.lines().filter_map(|line| line.strip_suffix(": test")) {
                let mut command = Command::new(&binary.path);
                command.args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=2"]);
                // As cargo has it, for what looks for its own files.
                command.current_dir(&binary.dir).env("CARGO_MANIFEST_DIR", &binary.dir);
                let name = format!("{}::{test}", binary.suite);
                jobs.push(Job { name: name.trim_start_matches("::").into(), command });
            }
        }
        if tier != Tier::Fast {
            let mut doc = cargo();
            doc.args(["test", "--locked", "--doc"]).args(packages(tier));
            jobs.push(Job { name: "doc".into(), command: doc });
            let us = std::env::current_exe()?;
            for (name, subcommand) in [("matrix", "matrix"), ("random", "regions")] {
                let mut command = Command::new(&us);
                command.current_dir(root()).arg(subcommand).args((tier == Tier::Gate).then_some("--quick"));
                jobs.push(Job { name: name.into(), command });
            }
        }
        Ok(jobs)
    }
}
