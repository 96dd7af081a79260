//! The installed tree, moved to another place, and programs that are built with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::{checker, once, root, run, scratch_dir, shared_dir, spaceless, stdout, thorough, tool};

/// An installed tree that has been moved since.
pub struct Tree {
    /// Paths that are configured count from here: nothing of the tree lies at these paths themselves. Without spaces, because neither
    /// pkg-config nor a shell that splits its words lets flags have any.
    pub root: PathBuf,
    pub prefix: &'static str,
    pub libdir: &'static str,
    pub includedir: &'static str,
}

impl Tree {
    /// Installs and moves. The arguments are those of the script; the fields say what they must come to.
    pub fn new(
        name: &str,
        prefix: &'static str,
        libdir: &'static str,
        includedir: &'static str,
        arguments: &[&str],
    ) -> Tree {
        Tree { root: spaceless(&install_and_move(&scratch_dir(name), arguments)), prefix, libdir, includedir }
    }

    /// The same once for all tests, none of which changes it.
    pub fn shared(
        name: &str,
        prefix: &'static str,
        libdir: &'static str,
        includedir: &'static str,
        arguments: &[&str],
    ) -> Tree {
        let dir = shared_dir(name);
        once(&dir.with_extension("tree"), "", || drop(install_and_move(&dir, arguments)));
        Tree { root: spaceless(&dir.join("moved")), prefix, libdir, includedir }
    }

    /// A configured path, where it is now.
    pub fn path(&self, configured: &str) -> PathBuf {
        self.root.join(configured.trim_start_matches('/'))
    }

    pub fn lib(&self, name: &str) -> PathBuf {
        self.path(self.libdir).join(name)
    }

    pub fn pkg_config(&self, arguments: &[&str]) -> String {
        let mut command = consumer("pkg-config");
        command.env("PKG_CONFIG_PATH", self.lib("pkgconfig")).args(arguments).arg("jitsym");
        stdout(&run(&mut command)).trim().to_string()
    }

    /// The same as words of a command line.
    pub fn pkg_config_words(&self, arguments: &[&str]) -> Vec<String> {
        self.pkg_config(arguments).split_whitespace().map(str::to_string).collect()
    }
}

fn install_and_move(scratch: &Path, arguments: &[&str]) -> PathBuf {
    fs::remove_dir_all(scratch).expect("clear the scratch directory");
    // The space is for the quoting in the script.
    let stage = scratch.join("first place");
    install(&stage, arguments);
    let moved = scratch.join("moved");
    fs::rename(&stage, &moved).expect("move the installed tree");
    moved
}

/// Runs the script. The variables are those that decide where things go and that the caller of the tests may have set.
pub fn install(destdir: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("sh");
    // From another directory, because nobody has to be in the source tree.
    command.current_dir("/").arg(root().join("scripts/install.sh")).args(arguments);
    command.env("DESTDIR", destdir).env("CARGO", env!("CARGO"));
    // So that it finds what the other tests have built.
    command.env_remove("CARGO_TARGET_DIR");
    stdout(&run(built(&mut command)))
}

/// Has the script install the program that the tests have. A thorough run builds the released one.
pub fn built(command: &mut Command) -> &mut Command {
    if !thorough() {
        command.env("JITSYM_PROGRAM", tool());
    }
    command
}

/// `/usr/local`, with nothing said but where: pkg-config file and CMake package are two and three directories deep.
pub fn plain() -> &'static Tree {
    static TREE: OnceLock<Tree> = OnceLock::new();
    TREE.get_or_init(|| {
        let (prefix, libdir, includedir) = ("/usr/local", "/usr/local/lib", "/usr/local/include");
        Tree::shared("plain", prefix, libdir, includedir, &["--prefix", prefix])
    })
}

/// A command without what cargo and the person who runs the tests put into the environment and what could find the
/// library, or another one, by other ways than the tree's own files.
pub fn consumer(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let decides = ["LD_", "PKG_CONFIG", "CMAKE_", "JITSYM", "JITDUMP"].iter().any(|start| text.starts_with(start));
        let searched = ["CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "DESTDIR"].contains(&&*text);
        let flags = ["CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "jitsym_DIR"].contains(&&*text);
        if decides || searched || flags {
            command.env_remove(&name);
        }
    }
    // CMake believes the shell about links in paths.
    command.env_remove("PWD").env("LC_ALL", "C");
    command
}

/// What a program or library says that it needs.
pub fn needed(file: &Path) -> Vec<String> {
    let output = stdout(&run(Command::new("readelf").env("LC_ALL", "C").args(["-d", "-W"]).arg(file)));
    assert!(output.contains("Dynamic section"), "{output}");
    let lines = output.lines().filter(|line| line.contains("(NEEDED)"));
    lines.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_string())).collect()
}

/// The shared library is needed under its soname, not under its file's name or path; a program that is linked
/// statically does not need it.
pub fn assert_linked(program: &Path, shared: bool) {
    let needed = needed(program);
    let ours: Vec<&str> = needed.iter().filter(|name| name.contains("jitsym")).map(String::as_str).collect();
    let expected: &[&str] = if shared { &["libjitsym.so.0.1"] } else { &[] };
    assert_eq!(ours, expected, "{}", program.display());
}

/// Builds the programs with these flags and each compiler, and runs them.
pub fn build_and_run(name: &str, shared: bool, cflags: &[String], libs: &[String]) {
    let bare = &["-fno-exceptions", "-fno-rtti"][..];
    let programs = [
        ("gcc", "hello.c", &[][..]),
        ("clang", "hello.c", &[]),
        ("g++", "hello.cc", &[]),
        ("g++", "hello.cc", bare),
        ("clang++", "hello.cc", &[]),
    ];
    for (compiler, source, flags) in programs {
        let dir = scratch_dir(format!("{name}-{compiler}-{}", flags.len()));
        let program = dir.join("hello");
        let mut command = consumer(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic"]).args(flags).args(cflags);
        command.arg(root().join("c-tests/consumers").join(source)).arg("-o").arg(&program).args(libs);
        run(&mut command);
        assert_linked(&program, shared);
        run(consumer(&program).arg(&dir));
        assert!(checker::assert_all_sound(&dir, &[]) > 0);
    }
}

pub fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}
