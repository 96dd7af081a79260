//! What `scripts/install.sh` installs can be used: with pkg-config and with CMake, shared and static, from C and from
//! C++, wherever the tree has been moved to.

use crate::installed;
use crate::installed::*;
use crate::pages;
use crate::support::{fresh_dir, root, run, scratch_dir, stdout, try_run, STATIC_LIBS};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The most that the shared library may weigh, as it is installed.
const SHARED_SIZE_MAX: u64 = 1_270_000;
/// The same if the standard library is built for it.
const SMALL_SIZE_MAX: u64 = 720_000;

/// As distributions with more than one architecture have it. Also a header that does not lie directly in `include`.
fn multiarch() -> &'static Tree {
    static TREE: OnceLock<Tree> = OnceLock::new();
    TREE.get_or_init(|| {
        let arguments = ["--prefix=//opt/tools/", "--libdir=lib/some-triplet", "--includedir=/opt/tools/include/jit"];
        Tree::shared("multiarch", "/opt/tools", "/opt/tools/lib/some-triplet", "/opt/tools/include/jit", &arguments)
    })
}

/// Libraries that are not below the prefix.
fn outside() -> &'static Tree {
    static TREE: OnceLock<Tree> = OnceLock::new();
    TREE.get_or_init(|| {
        Tree::shared("outside", "/usr", "/lib64", "/usr/include", &["--prefix", "/usr", "--libdir", "/lib64"])
    })
}

fn trees() -> [&'static Tree; 3] {
    [plain(), multiarch(), outside()]
}

#[test]
fn installed_files() {
    for tree in trees() {
        let version = env!("CARGO_PKG_VERSION");
        let expected = [
            (tree.lib(&format!("libjitsym.so.{version}")), 0o755),
            (tree.lib("libjitsym.a"), 0o644),
            (tree.lib("pkgconfig/jitsym.pc"), 0o644),
            (tree.lib("pkgconfig/jitsym-static.pc"), 0o644),
            (tree.lib("cmake/jitsym/jitsymConfig.cmake"), 0o644),
            (tree.lib("cmake/jitsym/jitsymConfigVersion.cmake"), 0o644),
            (tree.lib("cmake/jitsym/manifest.txt"), 0o644),
            (tree.path(tree.includedir).join("jitsym.h"), 0o644),
            (tree.path(tree.includedir).join("jitsym_region.h"), 0o644),
            (tree.path(tree.includedir).join("jitsym_control.h"), 0o644),
            (tree.path(tree.includedir).join("jitsym_dl.h"), 0o644),
            (tree.path(tree.includedir).join("jitsym_map.h"), 0o644),
            (tree.path(tree.includedir).join("jitsym.hpp"), 0o644),
            (tree.path(tree.prefix).join("bin/jitsym"), 0o755),
            (tree.path(tree.prefix).join("share/bash-completion/completions/jitsym"), 0o644),
            (tree.path(tree.prefix).join("share/zsh/site-functions/_jitsym"), 0o644),
            (tree.path(tree.prefix).join("share/fish/vendor_completions.d/jitsym.fish"), 0o644),
        ];
        let pages = pages::pages().into_keys().map(|name| {
            let section = name.rsplit('.').next().expect("section");
            (tree.path(tree.prefix).join(format!("share/man/man{section}/{name}")), 0o644)
        });
        let expected: Vec<(PathBuf, u32)> = expected.into_iter().chain(pages).collect();
        assert!(expected.iter().any(|(path, _)| path.ends_with("share/man/man3/jitsym_register.3")));
        let mut files: BTreeSet<PathBuf> = expected.iter().map(|(path, _)| path.clone()).collect();
        for (path, mode) in &expected {
            let metadata = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(metadata.is_file(), "{}", path.display());
            assert_eq!(metadata.permissions().mode() & 0o7777, *mode, "{}", path.display());
        }
        let links = [("libjitsym.so", "libjitsym.so.0.1"), ("libjitsym.so.0.1", &*format!("libjitsym.so.{version}"))];
        for (link, target) in links {
            assert_eq!(fs::read_link(tree.lib(link)).expect(link), Path::new(target));
            files.insert(tree.lib(link));
        }
        assert_eq!(contents(&tree.root).into_keys().collect::<BTreeSet<_>>(), files);
    }
}

/// All files below a directory: bytes, or for a link its target.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let entry = entry.expect("directory entry");
        let (path, kind) = (entry.path(), entry.file_type().expect("file type"));
        if kind.is_dir() {
            found.append(&mut contents(&path));
        } else if kind.is_symlink() {
            found.insert(path.clone(), fs::read_link(&path).expect("link").into_os_string().into_encoded_bytes());
        } else {
            found.insert(path.clone(), fs::read(&path).expect("file"));
        }
    }
    found
}

/// A second run changes nothing, and replaces files instead of writing into those that a program may be running from.
/// Each run says what it installed, one line a file.
#[test]
fn idempotent() {
    let scratch = scratch_dir("idempotent");
    fs::remove_dir_all(&scratch).expect("clear the scratch directory");
    let first_output = install(&scratch, &[]);
    let first = contents(&scratch);
    let shared = scratch.join("usr/local/lib").join(format!("libjitsym.so.{}", env!("CARGO_PKG_VERSION")));
    fs::remove_file(&shared).and_then(|()| fs::write(&shared, "older version")).expect("older file");
    let older = scratch.join("older");
    fs::hard_link(&shared, &older).expect("a second name for the older file");

    assert_eq!(install(&scratch, &[]), first_output);
    assert_eq!(fs::read(&older).expect("older"), b"older version", "a file in use was written to");
    fs::remove_file(&older).expect("older");
    assert!(contents(&scratch) == first, "the second run came to something else");
    let lines: BTreeSet<PathBuf> = first_output.lines().map(PathBuf::from).collect();
    assert_eq!(lines, first.into_keys().collect(), "one line for each file");
    assert_eq!(lines.len(), first_output.lines().count());
}

/// Files, links and directories below a directory.
fn everything(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let entry = entry.expect("directory entry");
        if entry.file_type().expect("file type").is_dir() {
            found.append(&mut everything(&entry.path()));
        }
        found.insert(entry.path());
    }
    found
}

/// What `--uninstall` says that it has removed, and whether it was all right. There is no cargo to build anything with.
fn uninstall(destdir: &Path, arguments: &[&str]) -> BTreeSet<PathBuf> {
    let mut command = consumer("sh");
    command.current_dir("/").arg(root().join("scripts/install.sh")).arg("--uninstall").args(arguments);
    let output = run(command.env("DESTDIR", destdir).env("CARGO", "/nowhere/cargo"));
    let paths: Vec<PathBuf> = stdout(&output).lines().map(PathBuf::from).collect();
    let removed: BTreeSet<PathBuf> = paths.iter().cloned().collect();
    assert_eq!(removed.len(), paths.len());
    // Whoever has removed nothing says why.
    assert_eq!(String::from_utf8_lossy(&output.stderr).contains("nothing is installed"), removed.is_empty());
    removed
}

/// What was there before is there afterwards, and nothing else: directories too.
#[test]
fn uninstalled() {
    let cases: [&[&str]; 5] = [
        &[],
        &["--prefix=/opt/tools", "--libdir=lib/some-triplet", "--includedir=/opt/tools/include/jit"],
        &["--prefix", "/usr", "--libdir", "/lib64"],
        &["--prefix=/"],
        // What echo takes for other characters.
        &[r"--prefix=/opt/a\tb\c\n", r"--libdir=lib\0101"],
    ];
    for arguments in cases {
        let stage = fresh_dir("uninstalled").join("a stage");
        // As a system has its /usr/local: directories without anything in them, and files of others.
        for dir in ["usr/local/bin", "usr/local/include", "usr/local/lib/cmake", "usr/local/share/man/man3", "lib64"] {
            fs::create_dir_all(stage.join(dir)).expect("directory");
        }
        for file in ["usr/local/lib/libother.so", "usr/local/share/man/man3/other.3", "lib64/libjitsym.so.9"] {
            fs::write(stage.join(file), "").expect("file");
        }
        let before = everything(&stage);
        install(&stage, arguments);
        let installed = everything(&stage);
        assert!(installed.len() > before.len() + 40, "{arguments:?}");
        let removed = uninstall(&stage, arguments);
        assert_eq!(everything(&stage), before, "{arguments:?}");
        assert_eq!(removed, &installed - &before, "{arguments:?}");
        assert!(uninstall(&stage, arguments).is_empty(), "{arguments:?}: a second time");
        assert_eq!(everything(&stage), before, "{arguments:?}: a second time");
    }
}

/// What another version has installed goes too, also after the tree was moved. What others have put there since stays.
#[test]
fn uninstalled_later() {
    let dir = fresh_dir("uninstalled-later");
    let first = dir.join("first");
    install(&first, &["--prefix=/opt/jit", "--bindir=tools"]);
    install(&first, &["--prefix=/opt/jit"]);
    for file in ["include/other.h", "lib/cmake/jitsym/notes"] {
        fs::write(first.join("opt/jit").join(file), "").expect("file of others");
    }
    // A directory has taken the place of a file.
    let page = first.join("opt/jit/share/man/man3/jitsym_init.3");
    fs::remove_file(&page).and_then(|()| fs::create_dir(&page)).expect("directory");
    let prefix = dir.join("second place");
    fs::rename(first.join("opt/jit"), &prefix).expect("move the tree");
    assert!(prefix.join("tools/jitsym").is_file() && prefix.join("bin/jitsym").is_file());
    uninstall(Path::new(""), &["--prefix", prefix.to_str().expect("UTF-8")]);
    let left = [
        "include",
        "include/other.h",
        "lib",
        "lib/cmake",
        "lib/cmake/jitsym",
        "lib/cmake/jitsym/notes",
        "share",
        "share/man",
        "share/man/man3",
        "share/man/man3/jitsym_init.3",
    ];
    assert_eq!(everything(&prefix), left.iter().map(|path| prefix.join(path)).collect::<BTreeSet<_>>());
    assert_eq!(everything(&first), BTreeSet::from([first.join("opt")]), "not where the tree lay before");
}

/// A directory that is not absolute is one of the caller's, and not of the source tree.
#[test]
fn relative_destdir() {
    let dir = fresh_dir("relative");
    for option in [&["--prefix=/usr"][..], &["--prefix=/usr", "--uninstall"]] {
        let mut command = Command::new("sh");
        command.current_dir(&dir).arg(root().join("scripts/install.sh")).args(option).env("DESTDIR", "stage");
        run(built(command.env("CARGO", env!("CARGO")).env_remove("CARGO_TARGET_DIR")));
        assert_eq!(dir.join("stage/usr/lib/libjitsym.a").exists(), option.len() == 1, "{option:?}");
    }
    assert!(!root().join("stage").exists());
}

#[test]
fn refused_arguments() {
    let cases: &[(&[&str], &str)] = &[
        (&["--prefix", "here"], "not absolute"),
        (&["--prefix"], "needs a directory"),
        (&["--libdir="], "needs a directory"),
        (&["--libdir=../lib"], "no . or .."),
        (&["--unknown"], "usage:"),
    ];
    for (arguments, text) in cases {
        let scratch = scratch_dir("refused");
        let mut command = Command::new("sh");
        // Without a cargo, so that nothing is built should one be accepted.
        command.arg(root().join("scripts/install.sh")).env("CARGO", "false").env("DESTDIR", &scratch).args(*arguments);
        let output = try_run(&mut command);
        assert!(!output.status.success(), "{arguments:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(text), "{arguments:?}: {stderr}");
    }
}

/// Every script says what it is for, refuses options that it does not know, and does nothing else then. (`test.sh` hands what it
/// is given to cargo.)
#[test]
fn scripts_say_how_they_are_used() {
    let dir = fresh_dir("usage");
    let (tools, here) = (dir.join("tools"), dir.join("here"));
    fs::create_dir(&tools).and_then(|()| fs::create_dir(&here)).expect("directories");
    // All that is at hand: with these nothing can be built, installed or removed.
    for tool in ["cat", "dirname", "sed"] {
        let file = stdout(&run(Command::new("sh").args(["-c", &format!("command -v {tool}")])));
        symlink(file.trim(), tools.join(tool)).expect("link");
    }
    let mut count = 0;
    for script in fs::read_dir(root().join("scripts")).expect("scripts").map(|entry| entry.expect("entry").path()) {
        let name = script.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        if name == "test.sh" {
            continue;
        }
        count += 1;
        let said = |arguments: &[&str]| {
            let mut shell = Command::new("/bin/sh");
            let output = try_run(shell.current_dir(&here).env("PATH", &tools).arg(&script).args(arguments));
            (output.status.code(), stdout(&output), String::from_utf8(output.stderr).expect("UTF-8"))
        };
        for arguments in [&["--help"][..], &["-h"], &["--help", "more"]] {
            let (code, out, err) = said(arguments);
            assert_eq!((code, &*err), (Some(0), ""), "{name} {arguments:?}");
            assert!(out.starts_with("usage: ") && out.contains(name) && out.lines().count() >= 3, "{name}: {out}");
        }
        for arguments in [&["--unknown"][..], &["-x"], &["--unknown", "more"], &["one", "--unknown"]] {
            let (code, out, err) = said(arguments);
            assert_eq!((code, &*out), (Some(2), ""), "{name} {arguments:?}: {err}");
            assert!(err.starts_with(&format!("{name}: ")) && err.contains("usage: "), "{name} {arguments:?}: {err}");
        }
    }
    assert!(count >= 5);
    assert_eq!(contents(&here).len() + fs::read_dir(&here).expect("here").count(), 0, "something was made");
}

/// Neither the build tree nor the configured prefix is written into what finds the library.
#[test]
fn relocatable() {
    for tree in trees() {
        for name in [
            "pkgconfig/jitsym.pc",
            "pkgconfig/jitsym-static.pc",
            "cmake/jitsym/jitsymConfig.cmake",
            "cmake/jitsym/jitsymConfigVersion.cmake",
        ] {
            let text = fs::read_to_string(tree.lib(name)).expect(name);
            assert!(!text.contains('@'), "a placeholder is left in {name}:\n{text}");
            assert!(!text.contains("first place"), "{name}:\n{text}");
            assert!(!text.contains(&*root().to_string_lossy()), "{name}:\n{text}");
            // That of the third one, /usr, is in a comment.
            assert!(tree.prefix == "/usr" || !text.contains(tree.prefix), "{name}:\n{text}");
        }
        let library = fs::read(tree.lib("libjitsym.so")).expect("library");
        let source_tree = root().to_string_lossy();
        assert!(
            !library.windows(source_tree.len()).any(|bytes| bytes == source_tree.as_bytes()),
            "path of the source tree"
        );
    }
}

/// Prefix, directories and flags come to where the tree is now; and to another prefix, if pkg-config is told one.
#[test]
fn pkg_config_paths() {
    for tree in trees() {
        run(consumer("pkg-config").arg("--validate").arg(tree.lib("pkgconfig/jitsym.pc")));
        let canonical =
            |path: &Path| fs::canonicalize(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (variable, expected) in [
            ("prefix", tree.prefix),
            ("exec_prefix", tree.prefix),
            ("libdir", tree.libdir),
            ("includedir", tree.includedir),
        ] {
            let value = tree.pkg_config(&[&format!("--variable={variable}")]);
            assert_eq!(canonical(Path::new(&value)), canonical(&tree.path(expected)), "{variable}={value}");
        }
        let cflags = tree.pkg_config_words(&["--cflags"]);
        assert_eq!(cflags.len(), 1, "{cflags:?}");
        let include = cflags[0].strip_prefix("-I").expect("-I");
        assert_eq!(canonical(Path::new(include)), canonical(&tree.path(tree.includedir)));
        let libs = tree.pkg_config_words(&["--libs"]);
        assert_eq!(libs[1..], ["-ljitsym"], "{libs:?}");
        assert_eq!(canonical(Path::new(libs[0].strip_prefix("-L").expect("-L"))), canonical(&tree.path(tree.libdir)));
    }
    let moved = plain().pkg_config(&["--define-variable=prefix=/elsewhere", "--cflags", "--libs"]);
    assert_eq!(moved, "-I/elsewhere/include -L/elsewhere/lib -ljitsym");
}

#[test]
fn pkg_config_shared() {
    for (index, tree) in trees().into_iter().enumerate() {
        let mut libs = tree.pkg_config_words(&["--libs"]);
        libs.push(format!("-Wl,-rpath,{}", tree.pkg_config(&["--variable=libdir"])));
        build_and_run(&format!("pc-shared-{index}"), true, &tree.pkg_config_words(&["--cflags"]), &libs);
    }
}

/// The static library has a file of its own: both libraries lie in one directory, and of `-ljitsym` the linker takes the shared one. Its
/// flags are the same with `--static`, and what a static link needs, no more and no less. `Libs.private` of the other file has the same
/// for build systems that find the library themselves.
#[test]
fn pkg_config_static() {
    for (index, tree) in trees().into_iter().enumerate() {
        run(consumer("pkg-config").arg("--validate").arg(tree.lib("pkgconfig/jitsym-static.pc")));
        let words = |arguments: &[&str]| {
            let mut command = consumer("pkg-config");
            command.env("PKG_CONFIG_PATH", tree.lib("pkgconfig")).args(arguments).arg("jitsym-static");
            let words: Vec<String> = stdout(&run(&mut command)).split_whitespace().map(str::to_string).collect();
            words
        };
        let libs = words(&["--libs"]);
        assert_eq!(libs[1], "-l:libjitsym.a");
        assert_eq!(libs[2..], *STATIC_LIBS, "jitsym-static.pc and support::STATIC_LIBS differ");
        assert_eq!(words(&["--static", "--libs"]), libs);
        assert_eq!(tree.pkg_config_words(&["--static", "--libs"])[2..], *STATIC_LIBS, "Libs.private");
        if index == 0 {
            build_and_run("pc-static", false, &words(&["--cflags"]), &libs);
        }
    }
}

/// A runtime that is a library, in a place that nobody else knows: by the commands of docs/linking.md.
#[test]
fn a_library_in_a_private_prefix() {
    let linking = fs::read_to_string(root().join("docs/linking.md")).expect("docs/linking.md");
    let (_, section) = linking.split_once("## A library in a private prefix").expect("a section");
    let (_, block) = section.split_once("```sh\n").expect("a block");
    let (block, _) = block.split_once("```").expect("its end");
    let vm = "#include <jitsym.h>\nint vm_runs(void);\n\
              int vm_runs(void) { return jitsym_version_number() == JITSYM_VERSION_NUMBER; }\n";
    let main = "int vm_runs(void);\nint main(void) { return !vm_runs(); }\n";
    let dir = fresh_dir("private-prefix");
    fs::write(dir.join("vm.c"), vm).and_then(|()| fs::write(dir.join("main.c"), main)).expect("write the sources");
    let built = |commands: &str| {
        let mut shell = consumer("sh");
        shell.current_dir(&dir).env("PKG_CONFIG_PATH", plain().lib("pkgconfig")).env_remove("LD_LIBRARY_PATH");
        try_run(shell.args(["-euc", &format!("{commands}\n./vm")]))
    };
    let output = built(block);
    assert!(output.status.success(), "{output:?}");
    // The control: the flag is what does it.
    let without = block.replace(" \"$rpath\"", "");
    assert_ne!(without, block);
    assert!(!built(&without).status.success(), "found without a run path");
}

/// Without pkg-config: the header and the libraries are where one looks for them.
#[test]
fn plain_compilers() {
    let tree = plain();
    let cflags = [format!("-I{}", tree.path(tree.includedir).display())];
    let libdir = tree.path(tree.libdir).display().to_string();
    let shared = strings(&[&format!("-L{libdir}"), "-ljitsym", &format!("-Wl,-rpath,{libdir}")]);
    build_and_run("plain-shared", true, &cflags, &shared);
    let mut archive = vec![format!("{libdir}/libjitsym.a")];
    archive.extend(strings(STATIC_LIBS));
    build_and_run("plain-static", false, &cflags, &archive);
}

/// The README's program, by each command that docs/linking.md has for compilers, in a shell that was told what is said there.
#[test]
fn the_readme_tells_the_truth() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let linking = fs::read_to_string(root().join("docs/linking.md")).expect("docs/linking.md");
    let (_, program) = readme.split_once("```c\n").expect("a program");
    let (program, _) = program.split_once("```").expect("its end");
    let exports: Vec<&str> = linking.lines().filter(|line| line.starts_with("export ")).collect();
    let rows = linking.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix("` |")?.split_once(" | `cc "));
    let commands: Vec<(&str, String)> =
        rows.map(|(how, rest)| (how, format!("cc {}", rest.replace("\\|", "|")))).collect();
    assert_eq!((exports.len(), commands.len()), (2, 4), "{exports:?} {commands:?}");
    let dir = fresh_dir("readme");
    fs::write(dir.join("vm.c"), program).expect("write the program");
    let prefix = format!("PREFIX='{}'", plain().path(plain().prefix).display());
    for (how, command) in commands {
        let lines = [&[&*prefix], &*exports, &[&*command, "./a.out"]].concat().join("\n");
        run(consumer("sh").current_dir(&dir).env("JITSYM_DIR", &dir).args(["-euc", &lines]));
        assert_linked(&dir.join("a.out"), how.ends_with("shared"));
    }
}

/// Configures, builds and tests the CMake project; returns its build directory.
fn cmake_project(tree: &Tree, name: &str, options: &[&str]) -> PathBuf {
    let build = scratch_dir(name);
    fs::remove_dir_all(&build).expect("clear the build directory");
    let mut configure = consumer("cmake");
    configure.arg("-S").arg(root().join("c-tests/consumers/cmake")).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", cmake_prefix(tree).display())).args(options);
    let output = stdout(&run(&mut configure));
    let version = format!("jitsym version {}\n", env!("CARGO_PKG_VERSION"));
    assert!(output.contains(&version), "{output}");
    run(consumer("cmake").arg("--build").arg(&build).args(["--parallel", "2"]));
    let output = stdout(&run(consumer("ctest").current_dir(&build).arg("--output-on-failure")));
    // An empty list of tests would be a success too.
    assert!(output.contains("100% tests passed, 0 tests failed out of 6"), "{output}");
    build
}

/// What to tell CMake: the prefix, or with the libraries outside of it, their directory.
fn cmake_prefix(tree: &Tree) -> PathBuf {
    if tree.libdir == format!("{}/lib", tree.prefix) {
        tree.path(tree.prefix)
    } else {
        tree.lib("cmake/jitsym")
    }
}

#[test]
fn cmake() {
    // BUILD_SHARED_LIBS, and whether jitsym::jitsym then is the shared library.
    let cases: &[(&Tree, &[&str], bool)] = &[
        (plain(), &[], true),
        (plain(), &["-DBUILD_SHARED_LIBS=OFF"], false),
        (plain(), &["-DBUILD_SHARED_LIBS=ON"], true),
        (multiarch(), &[], true),
        (outside(), &["-DBUILD_SHARED_LIBS=OFF"], false),
    ];
    for (index, (tree, options, default_is_shared)) in cases.iter().enumerate() {
        let build = cmake_project(tree, &format!("cmake-{index}"), options);
        for language in ["c", "cc"] {
            assert_linked(&build.join(format!("hello_{language}_shared")), true);
            assert_linked(&build.join(format!("hello_{language}_static")), false);
            assert_linked(&build.join(format!("hello_{language}_jitsym")), *default_is_shared);
        }
    }
}

/// The properties that CMake does not need for the project above, but others may.
#[test]
fn cmake_targets() {
    let script = "
        foreach(target shared static)
          foreach(property IMPORTED_LOCATION IMPORTED_SONAME INTERFACE_INCLUDE_DIRECTORIES INTERFACE_LINK_LIBRARIES)
            get_target_property(value jitsym::${target} ${property})
            message(\"${target} ${property} ${value}\")
          endforeach()
        endforeach()
        get_cmake_property(variables VARIABLES)
        foreach(variable ${variables})
          if(variable MATCHES _jitsym)
            message(\"left behind: ${variable}\")
          endif()
        endforeach()";
    for (index, tree) in trees().into_iter().enumerate() {
        let script = format!("find_package(jitsym CONFIG REQUIRED)\n{script}");
        let printed = configure_only(tree, &format!("cmake-targets-{index}"), &script);
        let include = fs::canonicalize(tree.path(tree.includedir)).expect("includedir");
        let lib = fs::canonicalize(tree.path(tree.libdir)).expect("libdir");
        let expected = [
            format!("shared IMPORTED_LOCATION {}/libjitsym.so.{}", lib.display(), env!("CARGO_PKG_VERSION")),
            "shared IMPORTED_SONAME libjitsym.so.0.1".into(),
            format!("shared INTERFACE_INCLUDE_DIRECTORIES {}", include.display()),
            "shared INTERFACE_LINK_LIBRARIES value-NOTFOUND".into(),
            format!("static IMPORTED_LOCATION {}/libjitsym.a", lib.display()),
            "static IMPORTED_SONAME value-NOTFOUND".into(),
            format!("static INTERFACE_INCLUDE_DIRECTORIES {}", include.display()),
            format!("static INTERFACE_LINK_LIBRARIES {}", STATIC_LIBS.join(";")),
        ];
        assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    }
}

/// Where /lib is a link to /usr/lib, the package may be found as /lib/cmake/jitsym, from where the header is not where
/// it is from /usr/lib.
#[test]
fn cmake_through_a_link() {
    let arguments = ["--prefix=/usr", "--bindir=/bin"];
    let tree = Tree::new("link", "/usr", "/usr/lib", "/usr/include", &arguments);
    symlink("usr/lib", tree.path("/lib")).expect("link");
    let code = format!(
        "set(jitsym_DIR \"{}\")
        find_package(jitsym CONFIG REQUIRED)
        get_target_property(value jitsym::shared INTERFACE_INCLUDE_DIRECTORIES)
        message(\"${{value}}\")",
        tree.path("/lib/cmake/jitsym").display()
    );
    let include = PathBuf::from(configure_only(&tree, "cmake-link", &code).trim());
    assert!(include.join("jitsym.h").is_file(), "{}", include.display());
    assert!(tree.path("/bin/jitsym").is_file());
}

/// Runs CMake code in a project of its own, and returns what it prints with `message()`.
fn configure_only(tree: &Tree, name: &str, code: &str) -> String {
    let dir = scratch_dir(name);
    fs::remove_dir_all(&dir).and_then(|()| fs::create_dir(&dir)).expect("project directory");
    // Libraries cannot be imported without a language that links.
    let head = "cmake_minimum_required(VERSION 3.16)\nproject(questions LANGUAGES C)\n";
    fs::write(dir.join("CMakeLists.txt"), format!("{head}{code}\n")).expect("project");
    let mut configure = consumer("cmake");
    configure.arg("-S").arg(&dir).arg("-B").arg(dir.join("build"));
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", cmake_prefix(tree).display()));
    String::from_utf8(run(&mut configure).stderr).expect("UTF-8")
}

/// Which requests for a version are granted.
#[test]
fn cmake_versions() {
    let cases = [
        ("", true),
        ("0.1", true),
        ("0.1.0", true),
        ("0.1.0 EXACT", true),
        ("0.1.99", false),
        ("0.0", false),
        ("0.0.9 EXACT", false),
        ("0.2", false),
        ("1", false),
        ("1.1", false),
        ("0.1...0.3", true),
        ("0.0...<0.1", false),
        ("0.0...0.1.0", true),
        ("0.0...<0.1.1", true),
        ("0.2...1", false),
    ];
    ask_for_versions(plain(), "cmake-versions", &cases);
}

/// From 1.0 on it is the major version alone that decides. Seen with a version file that is made for such a version.
#[test]
fn cmake_versions_after_zero() {
    let tree = Tree::new("after-zero", "/usr", "/usr/lib", "/usr/include", &["--prefix=/usr"]);
    let mut text = fs::read_to_string(root().join("cmake/jitsymConfigVersion.cmake.in")).expect("template");
    for (name, value) in [("VERSION", "2.3.4"), ("VERSION_MAJOR", "2"), ("VERSION_MINOR", "3")] {
        text = text.replace(&format!("@{name}@"), value);
    }
    fs::write(tree.lib("cmake/jitsym/jitsymConfigVersion.cmake"), text).expect("version file");
    let cases =
        [("2", true), ("2.1", true), ("2.3.4", true), ("2.4", false), ("1.3", false), ("0.3", false), ("3.0", false)];
    ask_for_versions(&tree, "cmake-versions-after-zero", &cases);
}

/// Compares what `find_package` finds with what it should.
fn ask_for_versions(tree: &Tree, name: &str, cases: &[(&str, bool)]) {
    let mut code = String::new();
    for (request, _) in cases {
        code += &format!("find_package(jitsym {request} CONFIG QUIET)\n");
        code += &format!("message(\"{request}: ${{jitsym_FOUND}}\")\nunset(jitsym_DIR CACHE)\n");
    }
    let printed = configure_only(tree, name, &code);
    let expected: Vec<String> =
        cases.iter().map(|(request, granted)| format!("{request}: {}", u8::from(*granted))).collect();
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
}

/// A distribution may leave out the static library: the package then works without it, and says so to who asks for it.
#[test]
fn cmake_without_static() {
    let tree = Tree::new("no-static", "/usr", "/usr/lib", "/usr/include", &["--prefix", "/usr"]);
    fs::remove_file(tree.lib("libjitsym.a")).expect("remove the static library");
    let code = "
        find_package(jitsym CONFIG QUIET)
        message(\"${jitsym_FOUND}\")
        if(TARGET jitsym::static)
          message(\"static\")
        endif()
        unset(jitsym_DIR CACHE)
        set(BUILD_SHARED_LIBS OFF)
        find_package(jitsym CONFIG)";
    let printed = configure_only(&tree, "cmake-no-static", code);
    assert!(printed.starts_with("1\n"), "{printed}");
    assert!(!printed.contains("static\n"), "{printed}");
    assert!(printed.contains("the static library of jitsym is not in"), "{printed}");
}

/// One version everywhere.
#[test]
fn versions_agree() {
    let tree = plain();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(tree.pkg_config(&["--modversion"]), version);

    let text = fs::read_to_string(tree.lib("cmake/jitsym/jitsymConfigVersion.cmake")).expect("CMake version file");
    assert!(text.contains(&format!("set(PACKAGE_VERSION \"{version}\")\n")), "{text}");

    let header = fs::read_to_string(tree.path(tree.includedir).join("jitsym.h")).expect("header");
    let number = |part: &str| {
        let start = format!("#define JITSYM_VERSION_{part} ");
        let line = header.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start}in the header")).to_string()
    };
    assert_eq!(["MAJOR", "MINOR", "PATCH"].map(number).join("."), version);

    // As somebody finds it who asks man, beside the program.
    let page = tree.path(tree.prefix).join("share/man/man3/libjitsym.3");
    let page = stdout(&run(Command::new("mandoc").args(["-T", "ascii"]).arg(page)));
    assert!(page.contains(&format!("libjitsym {version} ")), "{page}");

    // The program is the one of this version too, and starts.
    let program = tree.path(tree.prefix).join("bin/jitsym");
    assert_eq!(stdout(&run(consumer(program).arg("version"))), format!("jitsym {version}\n"));
}

/// The static library is one object that shows what the header declares, and has no debug information.
#[test]
fn static_library() {
    let library = plain().lib("libjitsym.a");
    let symbols = stdout(&run(Command::new("nm").args(["--defined-only", "--extern-only", "-P"]).arg(&library)));
    // What debuggers look for is weak: other libraries in a program define it too.
    let (debuggers, others): (Vec<&str>, Vec<&str>) =
        symbols.lines().skip(1).partition(|line| line.starts_with("__jit_debug_"));
    let kinds: Vec<&str> = debuggers.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert!(matches!(kinds[..], ["V" | "W", "V" | "W"]), "{symbols}");
    let shown: BTreeSet<&str> = others.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(shown, include_str!("exports.txt").lines().collect(), "{symbols}");
    let sections = stdout(&run(Command::new("readelf").env("LC_ALL", "C").args(["-S", "-W"]).arg(&library)));
    // Names of functions may have this in them.
    assert!(!sections.contains(" .debug_") && sections.contains(".text"), "{sections}");
}

/// objcopy ends well where it drops all symbols, and such a library would be found out by who links it.
#[test]
fn a_library_without_symbols_is_refused() {
    let dir = fresh_dir("sealed");
    let (objcopy, out) = (dir.join("objcopy"), dir.join("libjitsym.a"));
    // The call that makes a file is real.
    let script = "#!/bin/sh\nfor file; do :; done\n[ -e \"$file\" ] || exec objcopy \"$@\"\nexec strip \"$file\"\n";
    fs::write(&objcopy, script).expect("script");
    fs::set_permissions(&objcopy, fs::Permissions::from_mode(0o755)).expect("permissions");
    let mut seal = Command::new("sh");
    seal.arg(root().join("scripts/seal.sh")).arg(plain().lib("libjitsym.a")).arg(&out);
    run(&mut seal);
    fs::remove_file(&out).expect("a library with symbols");
    let refused = try_run(seal.env("OBJCOPY", &objcopy));
    assert!(!refused.status.success() && !out.exists());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has left no symbols"), "{refused:?}");
}

/// The installed shared library is small, and has neither debug information nor the symbols that only debuggers use.
#[test]
fn shared_library_size() {
    let library = plain().lib("libjitsym.so");
    let sections = stdout(&run(Command::new("readelf").env("LC_ALL", "C").args(["-S", "-W"]).arg(&library)));
    assert!(sections.contains(".dynsym"), "{sections}");
    assert!(!sections.contains(".debug_") && !sections.contains(".symtab"), "{sections}");
    let size = fs::metadata(&library).expect("library").len();
    assert!(size <= SHARED_SIZE_MAX, "the shared library has {size} bytes, at most {SHARED_SIZE_MAX} are allowed");
}

/// With a standard library of its own. Takes minutes, and the source of that, which the compilers of most machines come without.
#[test]
#[ignore = "needs the source of Rust's standard library"]
fn small_library_size() {
    let scratch = scratch_dir("small");
    fs::remove_dir_all(&scratch).expect("clear the directory");
    installed::install(&scratch, &["--prefix=/usr", "--small"]);
    let size = fs::metadata(scratch.join("usr/lib/libjitsym.so")).expect("library").len();
    println!("{size} bytes");
    assert!(size <= SMALL_SIZE_MAX, "the small shared library has {size} bytes, at most {SMALL_SIZE_MAX} are allowed");
}
