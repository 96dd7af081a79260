//! What scripts/release.sh adds to a copy of the sources: the crates that the library and the program `jitsym` consist of, a
//! Makefile that builds both without cargo, the licences of the crates, and a bill of materials.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{bail, Context, Result};
use serde_json::{json, Value};

use crate::run;

/// For which machines the crates are: what other systems need is left out.
const TARGETS: [&str; 5] = [
    "x86_64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-gnu",
    "aarch64-unknown-linux-musl",
    "riscv64gc-unknown-linux-gnu",
];
/// Name of the unit graph's part in the Makefile, and what cargo is told for it.
const PARTS: [(&str, &[&str]); 2] = [
    ("library", &["rustc", "--release", "--lib", "--features", "reserve", "--crate-type", "cdylib,staticlib"]),
    ("program", &["build", "--profile", "program", "--package", "jitsym-tool", "--bin", "jitsym"]),
];

/// What an archive of sources has of the checkout.
const FILES: &str = "Cargo.toml Cargo.lock .cargo build.rs cbindgen.toml README.md CHANGELOG.md SECURITY.md LICENSE-* \
    CMakeLists.txt cmake pkgconfig man include src scripts docs tests/exports.txt step tool :!tool/tests bindings packaging \
    examples :!examples/cranelift";

/// Has cargo take the crates of the directory.
const VENDORED: &str = "
[source.crates-io]
replace-with = \"vendored\"

[source.vendored]
directory = \"vendor\"
";

/// Makes a directory with the sources of the last commit, and completes them.
pub fn source(tree: &Path) -> Result<()> {
    let git = || run::command("git");
    let changed = run::stdout(git().args(["status", "--porcelain", "--untracked-files=no"]))?;
    if !changed.is_empty() {
        bail!("these changes are not committed:\n{changed}");
    }
    // What is there already is not touched.
    fs::create_dir(tree).with_context(|| format!("cannot make {}", tree.display()))?;
    let tree = &tree.canonicalize()?;
    let archive = tree.join("sources.tar");
    run::success(
        git().arg("archive").arg("--output").arg(&archive).args(["HEAD", "--"]).args(FILES.split_whitespace()),
    )?;
    run::success(run::command("tar").arg("-C").arg(tree).arg("-xf").arg(&archive))?;
    fs::remove_file(archive)?;

    let read = |name: &str| fs::read_to_string(tree.join(name)).with_context(|| name.to_owned());
    for name in ["Cargo.toml", "tool/Cargo.toml", "step/Cargo.toml"] {
        fs::write(tree.join(name), without_tests(&read(name)?))?;
    }
    // Removes the packages from the lock file that are not needed any more. The others keep their versions.
    let locked = read("Cargo.lock")?;
    run::success(cargo(tree).args(["vendor", "--quiet", "--versioned-dirs", "vendor"]))?;
    let known: BTreeSet<&str> = locked.lines().collect();
    if let Some(line) = read("Cargo.lock")?.lines().find(|line| line.starts_with("checksum") && !known.contains(line)) {
        bail!("another version of a crate than that of Cargo.lock: {line}");
    }
    let config = read(".cargo/config.toml")?;
    let (_, config) = config.split_once("[target").context("no flags in .cargo/config.toml")?;
    let flags = config.split_once("rustflags = [").and_then(|(_, flags)| flags.split_once(']'));
    let flags: Vec<&str> = flags.context("no flags in .cargo/config.toml")?.0.split('"').skip(1).step_by(2).collect();
    fs::write(tree.join(".cargo/config.toml"), format!("[target{config}{VENDORED}"))?;

    let parts = PARTS.map(|(part, arguments)| Ok((part, graph(tree, arguments, None)?)));
    let parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
    let used: BTreeSet<String> = parts.iter().flat_map(|(_, units)| units).map(Unit::id).collect();
    for target in TARGETS {
        let mut others = BTreeSet::new();
        for (_, arguments) in PARTS {
            others.extend(graph(tree, arguments, Some(target))?.iter().map(Unit::id));
        }
        if others != used {
            bail!(
                "{target} needs other crates, and the Makefile knows one list: {:?}",
                others.symmetric_difference(&used)
            );
        }
    }
    let crates = vendored(tree, &used)?;
    fs::write(tree.join("Makefile"), makefile(tree, &flags.join(" "), &parts)?)?;
    fs::write(tree.join("LICENSES-CRATES"), licences(tree, &crates)?)?;
    let bill = serde_json::to_string_pretty(&bill(tree, &crates, &parts)?)?;
    fs::write(tree.join("jitsym.cdx.json"), bill + "\n")?;
    Ok(())
}

/// A manifest without what only tests and benchmarks need.
fn without_tests(manifest: &str) -> String {
    let mut out = String::new();
    let mut kept = true;
    for line in manifest.lines() {
        if line.starts_with('[') {
            kept = !["[dev-dependencies]", "[[test]]", "[[bench]]"].contains(&line);
        }
        if line.starts_with("members = ") {
            out.push_str("members = [\"step\", \"tool\"]\n");
        } else if kept {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

fn cargo(tree: &Path) -> Command {
    let mut cargo = run::command(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    for name in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        cargo.env_remove(name);
    }
    cargo.current_dir(tree);
    cargo
}

/// One run of rustc, or of a build script.
struct Unit {
    /// Package.
    name: String,
    version: String,
    /// Where the package lies below the tree, and its file below that.
    dir: String,
    source: String,
    crate_name: String,
    edition: String,
    kinds: Vec<String>,
    runs: bool,
    opt_level: String,
    lto: bool,
    codegen_units: Option<u64>,
    features: Vec<String>,
    /// Index in the graph, and the name in the source.
    needs: Vec<(usize, String)>,
}

impl Unit {
    fn id(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    fn is(&self, kind: &str) -> bool {
        self.kinds.iter().any(|it| it == kind)
    }
}

/// What cargo would run for these arguments.
fn graph(tree: &Path, arguments: &[&str], target: Option<&str>) -> Result<Vec<Unit>> {
    let mut cargo = cargo(tree);
    // The stable cargo can print it too, though it calls the option unstable.
    cargo.env("RUSTC_BOOTSTRAP", "1").args(arguments).args(["--offline", "--locked", "--unit-graph"]);
    cargo.args(["-Z", "unstable-options"]);
    if let Some(target) = target {
        cargo.args(["--target", target]);
    }
    let graph: Value = serde_json::from_str(&run::stdout(&mut cargo)?)?;
    let units = graph["units"].as_array().context("no units")?;
    units.iter().map(|unit| parse(tree, unit).with_context(|| format!("{unit}"))).collect()
}

fn parse(tree: &Path, unit: &Value) -> Result<Unit> {
    let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
    let texts = |value: &Value| value.as_array().context("no list")?.iter().map(text).collect::<Result<Vec<_>>>();
    let source = text(&unit["target"]["src_path"])?;
    let source = Path::new(&source).strip_prefix(tree)?;
    let dir = source.ancestors().skip(1).find(|dir| tree.join(dir).join("Cargo.toml").is_file());
    let dir = dir.context("no manifest")?;
    // `registry+URL#name@version`, `path+URL#version`, `path+URL#name@version`
    let id = text(&unit["pkg_id"])?;
    let (url, id) = id.rsplit_once('#').context("no version")?;
    let (name, version) = id.split_once('@').unwrap_or((url.rsplit('/').next().unwrap_or(url), id));
    let needs = unit["dependencies"].as_array().context("no list")?.iter();
    let needs = needs.map(|need| {
        let index = need["index"].as_u64().context("no index")?;
        Ok((index as usize, text(&need["extern_crate_name"])?))
    });
    Ok(Unit {
        name: name.to_owned(),
        version: version.to_owned(),
        dir: dir.to_str().context("not UTF-8")?.to_owned(),
        source: source.strip_prefix(dir)?.to_str().context("not UTF-8")?.to_owned(),
        crate_name: text(&unit["target"]["name"])?.replace('-', "_"),
        edition: text(&unit["target"]["edition"])?,
        kinds: texts(&unit["target"]["kind"])?,
        runs: unit["mode"] == "run-custom-build",
        opt_level: text(&unit["profile"]["opt_level"])?,
        lto: unit["profile"]["lto"] == "fat",
        codegen_units: unit["profile"]["codegen_units"].as_u64(),
        features: texts(&unit["features"])?,
        needs: needs.collect::<Result<_>>()?,
    })
}

// ---- crates ----

/// A crate that was taken along.
struct Crate {
    name: String,
    version: String,
    licence: String,
    checksum: String,
    dir: String,
}

/// Leaves only a manifest of the crates that no target of `TARGETS` needs: cargo wants to see all crates of the lock file.
fn vendored(tree: &Path, used: &BTreeSet<String>) -> Result<Vec<Crate>> {
    let mut crates = Vec::new();
    let mut dirs = fs::read_dir(tree.join("vendor"))?.collect::<Result<Vec<_>, _>>()?;
    dirs.sort_by_key(|dir| dir.file_name());
    for dir in dirs {
        let id = dir.file_name().into_string().ok().context("not UTF-8")?;
        let checksums = dir.path().join(".cargo-checksum.json");
        let mut sums: Value = serde_json::from_str(&fs::read_to_string(&checksums)?)?;
        let checksum = sums["package"].as_str().context("no checksum")?.to_owned();
        if used.contains(&id) {
            let manifest = fs::read_to_string(dir.path().join("Cargo.toml"))?;
            let field = |name: &str| {
                let mut fields = manifest.lines().filter_map(|line| line.split_once(" = "));
                Some(fields.find(|(it, _)| *it == name)?.1.trim_matches('"').to_owned())
            };
            crates.push(Crate {
                name: field("name").context("no name")?,
                version: field("version").context("no version")?,
                licence: field("license")
                    .with_context(|| format!("{id} names no licence"))?
                    .replace('/', " OR ")
                    .replace("  ", " "),
                checksum,
                dir: format!("vendor/{id}"),
            });
            continue;
        }
        for entry in fs::read_dir(dir.path())? {
            let path = entry?.path();
            if path.is_dir() {
                fs::remove_dir_all(&path)?;
            } else if !path.ends_with("Cargo.toml") {
                fs::remove_file(&path)?;
            }
        }
        fs::create_dir(dir.path().join("src"))?;
        fs::write(dir.path().join("src/lib.rs"), "")?;
        sums["files"] = json!({});
        fs::write(&checksums, sums.to_string())?;
    }
    Ok(crates)
}

/// The licences of all crates, each text once.
fn licences(tree: &Path, crates: &[Crate]) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut out = String::from(
        "The library and the program jitsym contain these crates. Their licences follow the list.\n\
         They also contain the standard library of Rust (MIT OR Apache-2.0, https://github.com/rust-lang/rust);\n\
         what is built for musl contains libunwind of LLVM (Apache-2.0 WITH LLVM-exception), and what is linked\n\
         statically with musl contains musl (MIT).\n\n",
    );
    for it in crates {
        writeln!(out, "{} {}: {}", it.name, it.version, it.licence)?;
        let mut files = fs::read_dir(tree.join(&it.dir))?.collect::<Result<Vec<_>, _>>()?;
        files.sort_by_key(|file| file.file_name());
        for file in files {
            let name = file.file_name().to_string_lossy().to_uppercase();
            let is_licence = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
            if file.path().is_file() && is_licence.iter().any(|start| name.starts_with(start)) {
                let text = fs::read_to_string(file.path())?.replace('\r', "");
                texts.entry(text.trim().to_owned()).or_default().push(format!("{} {}", it.name, it.version));
            }
        }
    }
    for (text, mut of) in texts {
        of.dedup();
        write!(out, "\n{}\n{}\n\n{text}\n", "=".repeat(80), of.join(", "))?;
    }
    Ok(out)
}

/// The bill of materials, as CycloneDX 1.5.
fn bill(tree: &Path, crates: &[Crate], parts: &[(&str, Vec<Unit>)]) -> Result<Value> {
    let known: BTreeSet<String> = crates.iter().map(|it| format!("{}-{}", it.name, it.version)).collect();
    let reference = |id: &str| if known.contains(id) { format!("vendor/{id}") } else { id.to_owned() };
    let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for unit in parts.iter().flat_map(|(_, units)| units) {
        needs.entry(reference(&unit.id())).or_default();
    }
    for (_, units) in parts {
        for unit in units {
            let others = unit.needs.iter().map(|(index, _)| &units[*index]).filter(|need| need.id() != unit.id());
            needs.entry(reference(&unit.id())).or_default().extend(others.map(|need| reference(&need.id())));
        }
    }
    let version = version(tree)?;
    let own = |name: &str, kind: &str| {
        json!({"bom-ref": format!("{name}-{version}"), "type": kind, "name": name, "version": version,
            "licenses": [{"expression": "MIT OR Apache-2.0"}]})
    };
    let mut components = vec![own("jitsym-tool", "application"), own("jitsym-step", "library")];
    components.extend(crates.iter().map(|it| {
        json!({
            "bom-ref": it.dir,
            "type": "library",
            "name": it.name,
            "version": it.version,
            "purl": format!("pkg:cargo/{}@{}", it.name, it.version),
            "licenses": [{"expression": it.licence}],
            "hashes": [{"alg": "SHA-256", "content": it.checksum}],
        })
    }));
    let needs: Vec<Value> = needs.iter().map(|(it, needs)| json!({"ref": it, "dependsOn": needs})).collect();
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own("jitsym", "library")},
        "components": components,
        "dependencies": needs,
    }))
}

fn version(tree: &Path) -> Result<String> {
    let manifest = fs::read_to_string(tree.join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    Ok(line.context("no version")?.trim_matches('"').to_owned())
}

// ---- Makefile ----

const HEAD: &str = r#"# Builds libjitsym and the program jitsym by rustc alone, without cargo.
# scripts/release.sh has made this file of what cargo would do.
#
#   make                        the libraries and the program, in $(O)
#   make library                the libraries only
#   make install prefix=DIR     as scripts/install.sh, which says more; INSTALLFLAGS are its options
#
# RUSTC and RUSTFLAGS are as for cargo. LTO=off builds a larger library in less time.
RUSTC ?= rustc
RUSTFLAGS ?=
LTO = fat
O = target/make
prefix = /usr/local
INSTALLFLAGS =

# rustc would look for the job server of make, and `cd` in the directories of CDPATH.
unexport MAKEFLAGS MFLAGS CDPATH
.DELETE_ON_ERROR:
.PHONY: all library install clean again
all: library $(O)/jitsym
library: $(O)/libjitsym.so $(O)/libjitsym.a

ifneq ($(words $(O)),1)
$(error O=$(O): a path with spaces)
endif
ifeq ($(filter $(LTO),fat off),)
$(error LTO=$(LTO): fat or off)
endif
flags = @FLAGS@ $(RUSTFLAGS)
part_of_lto = $(if $(filter fat,$(LTO)),-C linker-plugin-lto)
own := $(shell find Cargo.toml build.rs cmake docs include man src step tool -type f)

install: all
	JITSYM_LIBRARIES="$(abspath $(O))/library" JITSYM_PROGRAM="$(abspath $(O))/jitsym" \
	  sh scripts/install.sh --prefix="$(prefix)" $(INSTALLFLAGS)

clean:
	rm -rf "$(O)"

# A file gets its name when it is complete.
$(O)/libjitsym.a: $(O)/library/libjitsym.a scripts/seal.sh tests/exports.txt
	sh scripts/seal.sh $(O)/library/libjitsym.a $@
	touch $@

$(O)/libjitsym.so: $(O)/library/libjitsym.a
	ln -sf libjitsym.so $@.@SO@
	ln -sfn jitsym-@VERSION@.out/man $(O)/library/man
	cp $(O)/library/libjitsym.so $@.new
	mv $@.new $@

$(O)/jitsym: $(O)/program/jitsym
	cp $(O)/program/jitsym $@.new
	mv $@.new $@

# What build scripts are told about the target. With another compiler, or other flags, all is built again.
again:
$(O)/target: export WITH = $(RUSTC) $(flags) $(LTO)
$(O)/target: again
	mkdir -p $(O)/library/new $(O)/program/new
	"$(RUSTC)" $(flags) --print cfg >$@.cfg
	"$(RUSTC)" -vV >$@.version
	printf '# %s\n' "$$WITH" >$@.new
	sed 's/^/# /' $@.version >>$@.new
	sed -n 's/^host: \(.*\)/export HOST=\1 TARGET=\1/p' $@.version >>$@.new
	awk -F= '{ name = toupper($$1); value = $$2; gsub(/"/, "", value); \
	  if (name in all) value = all[name] "," value; else names[++count] = name; all[name] = value } \
	  END { for (i = 1; i <= count; i++) print "export CARGO_CFG_" names[i] "=\"" all[names[i]] "\"" }' $@.cfg >>$@.new
	cmp -s $@.new $@ || mv $@.new $@

# Arguments for rustc of what a build script prints.
arguments = sed -n -e 's/^cargo::*rustc-cfg=/--cfg\n/p' -e 's/^cargo::*rustc-link-arg=/-Clink-arg=/p' \
  -e 's/^cargo::*rustc-cdylib-link-arg=/-Clink-arg=/p'
"#;

fn makefile(tree: &Path, flags: &str, parts: &[(&str, Vec<Unit>)]) -> Result<String> {
    let version = version(tree)?;
    let numbers: Vec<&str> = version.split('.').collect();
    let so = if numbers[0] == "0" { numbers[..2].join(".") } else { numbers[0].to_owned() };
    let mut out = HEAD.replace("@SO@", &so).replace("@VERSION@", &version).replace("@FLAGS@", flags);
    for (part, units) in parts {
        // The same crate may be built for the result and for what runs during the build.
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let names: Vec<String> = units
            .iter()
            .map(|unit| {
                let kind = if unit.runs { "run" } else { &unit.crate_name };
                let count = seen.entry(format!("{}-{kind}", unit.id())).or_default();
                *count += 1;
                if *count == 1 {
                    unit.id()
                } else {
                    format!("{}-{count}", unit.id())
                }
            })
            .collect();
        for (index, unit) in units.iter().enumerate() {
            if unit.runs {
                script(&mut out, part, units, &names, index)?;
            } else {
                compiler(&mut out, part, units, &names, index)?;
            }
        }
    }
    Ok(out)
}

/// The file that a unit makes.
fn result(part: &str, unit: &Unit, name: &str) -> String {
    let dir = format!("$(O)/{part}");
    if unit.runs {
        format!("{dir}/{name}.flags")
    } else if unit.is("custom-build") {
        format!("{dir}/{name}.script")
    } else if unit.is("bin") {
        format!("{dir}/{}", unit.crate_name)
    } else if unit.is("proc-macro") {
        format!("{dir}/lib{}-{name}.so", unit.crate_name)
    } else if is_c_library(unit) {
        format!("{dir}/lib{}.a", unit.crate_name)
    } else {
        format!("{dir}/lib{}-{name}.rlib", unit.crate_name)
    }
}

fn is_c_library(unit: &Unit) -> bool {
    unit.is("cdylib") && !unit.is("lib")
}

/// What cargo says about a package.
fn package(unit: &Unit) -> String {
    let mut parts = unit.version.split(['-', '+']).next().unwrap_or_default().split('.');
    let mut part = || parts.next().unwrap_or_default();
    format!(
        "CARGO_PKG_NAME={} CARGO_PKG_VERSION={} CARGO_PKG_VERSION_MAJOR={} CARGO_PKG_VERSION_MINOR={} \
         CARGO_PKG_VERSION_PATCH={} CARGO_PKG_VERSION_PRE= CARGO_MANIFEST_DIR=\"$(CURDIR)/{}\"",
        unit.name,
        unit.version,
        part(),
        part(),
        part(),
        unit.dir
    )
}

fn compiler(out: &mut String, part: &str, units: &[Unit], names: &[String], index: usize) -> Result<()> {
    let (unit, name) = (&units[index], &names[index]);
    let file = result(part, unit, name);
    let runs_in_the_build = unit.is("custom-build") || unit.is("proc-macro");
    write!(out, "\n{file}: $(O)/target")?;
    if !unit.dir.starts_with("vendor/") {
        write!(out, " $(own)")?;
    }
    for (need, _) in &unit.needs {
        write!(out, " {}", result(part, &units[*need], &names[*need]))?;
    }
    write!(out, "\n\t")?;
    let script = unit.needs.iter().map(|(need, _)| *need).find(|need| units[*need].runs);
    if let Some(script) = script {
        write!(out, "OUT_DIR=\"$(abspath $(O)/{part}/{}.out)\" ", names[script])?;
    }
    write!(out, "{} CARGO_CRATE_NAME={} ", package(unit), unit.crate_name)?;
    let source = Path::new(&unit.dir).join(&unit.source);
    write!(
        out,
        "\\\n\t  \"$(RUSTC)\" --crate-name {} --edition {} {}",
        unit.crate_name,
        unit.edition,
        source.display()
    )?;
    let (dir, base) = file.rsplit_once('/').context("no directory")?;
    let new = format!("$(O)/{part}/new");
    if unit.is("custom-build") || unit.is("bin") {
        write!(out, " --crate-type bin -o {new}/{base}")?;
    } else if is_c_library(unit) {
        write!(out, " --crate-type cdylib,staticlib --out-dir {new}")?;
    } else {
        let kind = if unit.is("proc-macro") { "proc-macro" } else { "lib" };
        write!(out, " --crate-type {kind} --emit link --out-dir {new} -C extra-filename=-{name}")?;
    }
    write!(out, " -C metadata={part}-{name} -C opt-level={} -L dependency={dir} --cap-lints allow", unit.opt_level)?;
    if unit.lto && unit.opt_level != "0" {
        // As cargo has it: all code is made at the end. What only runs during the build is not optimized.
        out.push_str(if is_c_library(unit) { " -C lto=$(LTO)" } else { " $(part_of_lto)" });
    }
    if let Some(units) = unit.codegen_units {
        write!(out, " -C codegen-units={units}")?;
    }
    if unit.is("proc-macro") {
        write!(out, " --extern proc_macro")?;
    }
    for feature in &unit.features {
        write!(out, " --cfg 'feature=\"{feature}\"'")?;
    }
    for (need, crate_name) in &unit.needs {
        let file = result(part, &units[*need], &names[*need]);
        if units[*need].runs {
            write!(out, " @{file}")?;
        } else {
            write!(out, " --extern {crate_name}={file}")?;
        }
    }
    if !runs_in_the_build {
        // At the end, so that they decide.
        out.push_str(" $(flags)");
    }
    if is_c_library(unit) {
        write!(out, "\n\tmv {new}/lib{}.so {dir}", unit.crate_name)?;
    }
    writeln!(out, "\n\tmv {new}/{base} $@")?;
    Ok(())
}

fn script(out: &mut String, part: &str, units: &[Unit], names: &[String], index: usize) -> Result<()> {
    let (unit, name) = (&units[index], &names[index]);
    let is_program = |need: &&(usize, String)| units[need.0].is("custom-build") && !units[need.0].runs;
    let Some((program, _)) = unit.needs.iter().find(is_program) else {
        bail!("no program of the build script of {}", unit.name)
    };
    let program = result(part, &units[*program], &names[*program]);
    let file = result(part, unit, name);
    write!(out, "\n{file}: {program}\n\trm -rf $(O)/{part}/{name}.out\n\tmkdir -p $(O)/{part}/{name}.out\n")?;
    let dir = if unit.dir.is_empty() { "." } else { &unit.dir };
    write!(out, "\t. \"$(abspath $(O)/target)\" && cd {dir} && env {} ", package(unit))?;
    for feature in &unit.features {
        write!(out, "CARGO_FEATURE_{}=1 ", feature.to_uppercase().replace('-', "_"))?;
    }
    write!(
        out,
        "\\\n\t  OUT_DIR=\"$(abspath $(O)/{part}/{name}.out)\" RUSTC=\"$(RUSTC)\" OPT_LEVEL={} DEBUG=false PROFILE=release \
         NUM_JOBS=1 CARGO_ENCODED_RUSTFLAGS= \"$(abspath {program})\" >\"$(abspath {file}).output\"\n\
         \t$(arguments) {file}.output >$@.new\n\tmv $@.new $@\n",
        unit.opt_level
    )?;
    Ok(())
}
