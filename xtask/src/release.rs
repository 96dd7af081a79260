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

/// Has cargo take the crates of the directory.
const CONFIG: &str = "[source.crates-io]
replace-with = \"vendored\"

[source.vendored]
directory = \"vendor\"
";

/// Completes a copy of the sources.
pub fn source(tree: &Path) -> Result<()> {
    let tree = &tree.canonicalize().with_context(|| format!("{}", tree.display()))?;
    for manifest in ["Cargo.toml", "tool/Cargo.toml", "step/Cargo.toml"] {
        let path = tree.join(manifest);
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        fs::write(&path, without_tests(&text))?;
    }
    // Removes the packages from the lock file that are not needed any more. The others keep their versions.
    run::success(cargo(tree).args(["vendor", "--quiet", "--versioned-dirs", "vendor"]))?;
    fs::create_dir_all(tree.join(".cargo"))?;
    fs::write(tree.join(".cargo/config.toml"), CONFIG)?;

    let mut used = BTreeSet::new();
    for target in TARGETS {
        for (_, arguments) in PARTS {
            used.extend(graph(tree, arguments, Some(target))?.iter().map(Unit::id));
        }
    }
    let crates = vendored(tree, &used)?;
    let parts = PARTS.map(|(part, arguments)| Ok((part, graph(tree, arguments, None)?)));
    let parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
    fs::write(tree.join("Makefile"), makefile(tree, &parts)?)?;
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
# RUSTC and RUSTFLAGS are as for cargo.
RUSTC = rustc
RUSTFLAGS =
O = target/make
prefix = /usr/local
INSTALLFLAGS =

# rustc would look for the job server of make.
unexport MAKEFLAGS MFLAGS
.DELETE_ON_ERROR:
.PHONY: all library install clean
all: library $(O)/jitsym
library: $(O)/libjitsym.so $(O)/libjitsym.a

install: all
	JITSYM_LIBRARIES="$(abspath $(O))/library" JITSYM_PROGRAM="$(abspath $(O))/jitsym" \
	  sh scripts/install.sh --prefix="$(prefix)" $(INSTALLFLAGS)

clean:
	rm -rf $(O)

$(O)/libjitsym.a: $(O)/library/libjitsym.a
	sh scripts/seal.sh $(O)/library/libjitsym.a $@

$(O)/libjitsym.so: $(O)/library/libjitsym.a
	cp $(O)/library/libjitsym.so $@
	ln -sf libjitsym.so $(O)/libjitsym.so.@SO@
	ln -sfn jitsym-@VERSION@.out/man $(O)/library/man

$(O)/jitsym: $(O)/program/jitsym
	cp $(O)/program/jitsym $@

# What build scripts are told about the target.
$(O)/target: Makefile
	mkdir -p $(O)
	$(RUSTC) $(RUSTFLAGS) --print cfg | awk -F= '{ name = toupper($$1); value = $$2; gsub(/"/, "", value); \
	  if (name in all) value = all[name] "," value; all[name] = value } \
	  END { for (name in all) print "export CARGO_CFG_" name "=\"" all[name] "\"" }' >$@.new
	$(RUSTC) -vV | sed -n 's/^host: \(.*\)/export HOST=\1 TARGET=\1/p' >>$@.new
	mv $@.new $@

# Arguments for rustc of what a build script prints.
flags = sed -n -e 's/^cargo::*rustc-cfg=/--cfg\n/p' -e 's/^cargo::*rustc-link-arg=/-Clink-arg=/p' \
  -e 's/^cargo::*rustc-cdylib-link-arg=/-Clink-arg=/p'
"#;

fn makefile(tree: &Path, parts: &[(&str, Vec<Unit>)]) -> Result<String> {
    let version = version(tree)?;
    let numbers: Vec<&str> = version.split('.').collect();
    let so = if numbers[0] == "0" { numbers[..2].join(".") } else { numbers[0].to_owned() };
    let mut out = HEAD.replace("@SO@", &so).replace("@VERSION@", &version);
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
        format!("{dir}/{name}.script/build_script_build")
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
    let needs = unit.needs.iter().map(|(need, _)| result(part, &units[*need], &names[*need]));
    write!(
        out,
        "\n{file}: {}\n\tmkdir -p {}\n\t",
        needs.collect::<Vec<_>>().join(" "),
        file.rsplit_once('/').unwrap().0
    )?;
    let script = unit.needs.iter().map(|(need, _)| *need).find(|need| units[*need].runs);
    if let Some(script) = script {
        write!(out, "OUT_DIR=\"$(abspath $(O)/{part}/{}.out)\" ", names[script])?;
    }
    write!(out, "{} CARGO_CRATE_NAME={} ", package(unit), unit.crate_name)?;
    let source = if unit.dir.is_empty() { unit.source.clone() } else { format!("{}/{}", unit.dir, unit.source) };
    write!(out, "\\\n\t  $(RUSTC) --crate-name {} --edition {} {source}", unit.crate_name, unit.edition)?;
    let dir = format!("$(O)/{part}");
    if unit.is("custom-build") {
        write!(out, " --crate-type bin -o {file}")?;
    } else if unit.is("bin") {
        write!(out, " --crate-type bin -o {file}")?;
    } else if is_c_library(unit) {
        write!(out, " --crate-type cdylib,staticlib --out-dir {dir}")?;
    } else {
        let kind = if unit.is("proc-macro") { "proc-macro" } else { "lib" };
        write!(out, " --crate-type {kind} --emit link --out-dir {dir} -C extra-filename=-{name}")?;
    }
    write!(out, " -C metadata={part}-{name} -C opt-level={} -L dependency={dir} --cap-lints allow", unit.opt_level)?;
    if unit.lto && unit.opt_level != "0" {
        // As cargo has it: all code is made at the end. What only runs during the build is not optimized.
        let how = if is_c_library(unit) { "lto=fat" } else { "linker-plugin-lto" };
        write!(out, " -C {how}")?;
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
    if !unit.is("custom-build") && !unit.is("proc-macro") {
        // At the end, so that they decide.
        out.push_str(" $(RUSTFLAGS)");
    }
    out.push('\n');
    Ok(())
}

fn script(out: &mut String, part: &str, units: &[Unit], names: &[String], index: usize) -> Result<()> {
    let (unit, name) = (&units[index], &names[index]);
    let Some((program, _)) = unit.needs.iter().find(|(need, _)| units[*need].is("custom-build") && !units[*need].runs)
    else {
        bail!("no program of the build script of {}", unit.name)
    };
    let program = result(part, &units[*program], &names[*program]);
    let file = result(part, unit, name);
    write!(
        out,
        "\n{file}: {program} $(O)/target\n\trm -rf $(O)/{part}/{name}.out\n\tmkdir -p $(O)/{part}/{name}.out\n"
    )?;
    let dir = if unit.dir.is_empty() { "." } else { &unit.dir };
    write!(out, "\t. $(abspath $(O)/target) && cd {dir} && env {} ", package(unit))?;
    for feature in &unit.features {
        write!(out, "CARGO_FEATURE_{}=1 ", feature.to_uppercase().replace('-', "_"))?;
    }
    write!(
        out,
        "\\\n\t  OUT_DIR=\"$(abspath $(O)/{part}/{name}.out)\" RUSTC=\"$(RUSTC)\" OPT_LEVEL={} DEBUG=false PROFILE=release \
         NUM_JOBS=1 CARGO_ENCODED_RUSTFLAGS= $(abspath {program}) >$(abspath {file}).output\n\t$(flags) {file}.output >$@\n",
        unit.opt_level
    )?;
    Ok(())
}
