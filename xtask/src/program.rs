//! The ground-truth program: building it, running it, and removing what a run leaves in /tmp.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::perf::Graph;
use crate::run;
use crate::truth::Truth;

/// The root of the source tree.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the source tree")
}

/// cargo, in the source tree.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// The program, built with the library as it is shipped: once for readers that follow tables, where C has no frame pointers
/// either, and once for those that follow frame pointers.
pub struct Program {
    pub by_tables: PathBuf,
    pub by_frame_pointers: PathBuf,
}

impl Program {
    pub fn build() -> Result<Self> {
        let library = build_library()?;
        let sources = root().join("c-tests/matrix");
        Ok(Program {
            by_tables: compile(&library, "matrix_jit", &sources, &["-fomit-frame-pointer"])?,
            by_frame_pointers: compile(
                &library,
                "matrix_jit_fp",
                &sources,
                &["-fno-omit-frame-pointer", "-DFRAME_POINTERS"],
            )?,
        })
    }

    /// The one for such readers.
    pub fn of(&self, graph: Graph) -> &Path {
        match graph {
            Graph::Dwarf => &self.by_tables,
            Graph::FramePointers => &self.by_frame_pointers,
        }
    }

    pub fn scenarios(&self) -> Result<Vec<String>> {
        let list = run::stdout(run::command(&self.by_tables).arg("list"))?;
        Ok(list.lines().map(str::to_string).collect())
    }
}

/// The program that makes random code in regions.
pub fn build_random() -> Result<PathBuf> {
    let sources = root().join("c-tests/regions/random");
    compile(&build_library()?, "random_code", &sources, &["-fomit-frame-pointer"])
}

/// Builds the program `jitsym` with the profile that scripts/install.sh uses, unless `cargo xtask test` has built the program.
/// Returns the program's path.
pub fn build_tool() -> Result<PathBuf> {
    if let Some(built) = std::env::var_os("JITSYM_TEST_TOOL") {
        return Ok(built.into());
    }
    let target = root().join("target");
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--locked", "--profile", "program", "--package", "jitsym-tool"]);
    run::success(cargo.arg("--target-dir").arg(&target))?;
    Ok(target.join("program/jitsym"))
}

/// Builds the C library as it is shipped. Returns the directory that it lies in.
pub fn build_library() -> Result<PathBuf> {
    let target = root().join("target/c");
    let mut cargo = cargo();
    cargo.args(["rustc", "--quiet", "--locked", "--release", "--lib", "--features", "reserve"]);
    cargo.args(["--crate-type", "cdylib,staticlib"]);
    run::success(cargo.arg("--target-dir").arg(&target))?;
    let library = target.join("release");
    let soname = library.join("libjitsym.so.0.1");
    if !soname.exists() {
        let _ = std::os::unix::fs::symlink("libjitsym.so", &soname);
    }
    Ok(library)
}

fn compile(library: &Path, name: &str, sources: &Path, flags: &[&str]) -> Result<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(sources).with_context(|| format!("{}", sources.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            files.push(path);
        }
    }
    files.sort();
    let program = library.join(name);
    // Another run may be using the program.
    let new = library.join(format!("{name}.{}", std::process::id()));
    let mut cc = run::command("cc");
    // Every call is a call, so that every function is in the stack.
    cc.args(["-std=gnu11", "-g", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-optimize-sibling-calls", "-pthread"]);
    cc.current_dir(root()).args(["-Iinclude", "-Ic-tests/support"]).args(flags).args(&files).arg("-o").arg(&new);
    // The old kind of rpath wins over LD_LIBRARY_PATH, in which cargo names directories with other builds.
    let library = library.display();
    cc.args([format!("-L{library}"), "-ljitsym".into(), format!("-Wl,--disable-new-dtags,-rpath,{library}")]);
    run::success(&mut cc)?;
    std::fs::rename(&new, &program)?;
    Ok(program)
}

/// What the program is to have the library write, and where its code lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Written {
    /// The perf map alone.
    Map,
    /// A jitdump too, which `perf inject --jit` works in.
    Jitdump,
    /// Regions that the library makes, and nothing else.
    Region,
    /// The same, but of memory of the program's own, which the library adopts.
    Adopted,
}

impl Written {
    /// Whether the scenario can be run so, and differs from how it is run otherwise.
    pub fn is_about(self, scenario: &str) -> bool {
        let chooses_regions = scenario.starts_with("region-");
        match self {
            Written::Map | Written::Jitdump => !chooses_regions,
            Written::Region => scenario != "memfd",
            Written::Adopted => scenario != "memfd" && !chooses_regions,
        }
    }

    fn arguments(self) -> [&'static str; 2] {
        match self {
            Written::Map => ["sinks=map", "memory=plain"],
            Written::Jitdump => ["sinks=both", "memory=plain"],
            Written::Region => ["sinks=region", "memory=created"],
            Written::Adopted => ["sinks=region", "memory=adopted"],
        }
    }
}

/// One run of a scenario: how the program is called, and where it says what happened.
pub struct Scenario<'a> {
    pub name: &'a str,
    pub written: Written,
    /// Functions of the scenario `many`.
    pub count: usize,
    pub seconds: f64,
    pub truth: PathBuf,
    /// The program waits for a profiler before it runs anything.
    pub wait: bool,
    /// The program stays alive at its end until its standard input ends.
    pub hold: bool,
    /// It is stepped: each stack runs once.
    pub step: bool,
}

impl Scenario<'_> {
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![self.name.to_string()];
        arguments.push(format!("truth={}", self.truth.display()));
        arguments.extend(self.written.arguments().map(String::from));
        arguments.push(format!("seconds={}", self.seconds));
        arguments.push(format!("count={}", self.count));
        if self.wait {
            arguments.push("wait=1".into());
        }
        if self.hold {
            arguments.push("hold=1".into());
        }
        if self.step {
            arguments.push("step=1".into());
        }
        arguments
    }

    /// What happened. To be called when the program has ended, or has said that it is done.
    pub fn truth(&self) -> Result<Truth> {
        let text = std::fs::read_to_string(&self.truth).with_context(|| format!("{}", self.truth.display()))?;
        Truth::parse(&text)
    }
}

/// Removes the files of processes from /tmp when dropped: maps, dumps, regions, and the objects that `perf inject` has made.
#[derive(Default)]
pub struct Leftovers {
    pub pids: BTreeSet<u32>,
    pub paths: Vec<PathBuf>,
}

impl Leftovers {
    /// Of a run that has said so much of itself, whether it came to its end or not.
    pub fn of(truth: &Path) -> Self {
        let mut leftovers = Leftovers::default();
        for line in std::fs::read_to_string(truth).unwrap_or_default().lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["pid", pid] => leftovers.pids.extend(pid.parse::<u32>()),
                ["path", _, path] => leftovers.paths.push(path.into()),
                _ => {}
            }
        }
        leftovers
    }

    /// The files of these processes in /tmp.
    pub fn files(&self) -> Vec<PathBuf> {
        let is_theirs = |entry: &std::fs::DirEntry| {
            process_of(&entry.file_name().to_string_lossy()).is_some_and(|pid| self.pids.contains(&pid))
        };
        let entries = std::fs::read_dir("/tmp").into_iter().flatten().flatten();
        entries.filter(is_theirs).map(|entry| entry.path()).collect()
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        for path in self.paths.iter().chain(&self.files()) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Which process a file in /tmp is about.
pub fn process_of(name: &str) -> Option<u32> {
    let rest = if let Some(rest) = name.strip_prefix("jitted-") {
        rest.split_once('-')?.0
    } else if let Some(rest) = name.strip_prefix("jit-") {
        // Of regions `PID-NUMBER.so`, and `PID-NUMBER.GENERATION.so`.
        rest.strip_suffix(".dump").or_else(|| Some(rest.strip_suffix(".so")?.split_once('-')?.0))?
    } else {
        name.strip_prefix("perf-")?.strip_suffix(".map")?
    };
    rest.parse().ok()
}

/// An empty directory for this run.
pub fn scratch() -> Result<PathBuf> {
    let dir = std::env::temp_dir().join(format!("jitsym-matrix-{}", std::process::id()));
    if dir.exists() {
        bail!("{} is in the way", dir.display());
    }
    std::fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::process_of;

    #[test]
    fn files_are_known_by_their_process() {
        assert_eq!(process_of("perf-12.map"), Some(12));
        assert_eq!(process_of("jit-12.dump"), Some(12));
        assert_eq!(process_of("jitted-12-1099511627776.so"), Some(12));
        assert_eq!((process_of("jit-12-1.so"), process_of("jit-12-1.3.so")), (Some(12), Some(12)));
        assert_eq!(process_of("jitsym-matrix-12"), None);
        assert_eq!(process_of("perf-12.data"), None);
    }
}
