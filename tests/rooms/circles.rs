//! Which files of `src` import each other in a circle: none can be understood, tested or taken out without the others.

use std::collections::{BTreeMap, BTreeSet};

/// A module's names from the root of the crate on.
type Path = Vec<String>;

/// The source text of each module, without comments and tests.
pub struct Modules(BTreeMap<Path, String>);

/// What the module of a file is called.
fn module_of(file: &str) -> Path {
    let mut path: Path = file.trim_end_matches(".rs").split('/').map(String::from).collect();
    if path.last().is_some_and(|last| last == "mod") || path == ["lib"] {
        path.pop();
    }
    path
}

/// The name that a text begins with.
fn name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The rest of all paths that begin before `text`, which is at `::` if there is a rest: `::a::{b, c::d}` gives a::b and a::c::d.
fn rests(text: &str) -> Vec<Path> {
    let Some(text) = text.trim_start().strip_prefix("::").map(str::trim_start) else { return vec![Vec::new()] };
    let Some(group) = text.strip_prefix('{') else {
        let first = name(text);
        let with_first = |mut rest: Path| {
            rest.insert(0, first.to_string());
            rest
        };
        let rests = if first.is_empty() { vec![Vec::new()] } else { rests(&text[first.len()..]) };
        return rests.into_iter().map(with_first).collect();
    };
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        let ends = depth == 0 && matches!(c, ',' | '}');
        if ends && !group[start..at].trim().is_empty() {
            // As if it followed the group's path by itself.
            found.extend(rests(&format!("::{}", group[start..at].trim())));
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
        start = if ends { at + 1 } else { start };
    }
    found
}

impl Modules {
    /// `files`: names from `src`, and texts without comments and tests.
    pub fn new(files: impl Iterator<Item = (String, String)>) -> Modules {
        Modules(files.map(|(file, text)| (module_of(&file), text)).collect())
    }

    /// The paths to modules of this crate that a module names, from the root, and whether each is handed on under its last name.
    fn paths(&self, module: &Path) -> Vec<(Path, bool)> {
        let text = &self.0[module];
        let is_child = |name: &str| self.0.contains_key(&[&module[..], &[name.to_string()]].concat());
        let mut found = Vec::new();
        let mut before = ' ';
        for (at, c) in text.char_indices() {
            let first = name(&text[at..]);
            let begins = !(before.is_alphanumeric() || before == '_' || before == ':' || first.is_empty());
            before = c;
            if !begins || !(matches!(first, "crate" | "super" | "self") || is_child(first)) {
                continue;
            }
            let rest = &text[at + first.len()..];
            if !rest.trim_start().starts_with("::") {
                continue;
            }
            let line = text[..at].rsplit('\n').next().unwrap_or_default().trim_start();
            let is_handed_on = line.starts_with("pub") && line.trim_end().ends_with("use");
            for rest in rests(rest) {
                let mut path = [&[first.to_string()], &rest[..]].concat();
                let mut base = module.clone();
                match first {
                    "crate" => base.clear(),
                    "super" => {
                        let up = path.iter().take_while(|name| *name == "super").count();
                        base.truncate(base.len().saturating_sub(up));
                        path.drain(1..up);
                    }
                    "self" => {}
                    _ => base.push(first.to_string()),
                }
                found.push(([base, path.split_off(1)].concat(), is_handed_on));
            }
        }
        found
    }

    /// For each module those that it imports from. What a module hands on counts as imported from where it is.
    fn imports(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let paths: BTreeMap<&Path, _> = self.0.keys().map(|module| (module, self.paths(module))).collect();
        let mut handed_on = BTreeMap::new();
        for (module, paths) in &paths {
            for (path, _) in paths.iter().filter(|(_, is_handed_on)| *is_handed_on) {
                handed_on.extend(path.last().map(|last| ((*module, last), path)));
            }
        }
        let resolve = |path: &Path| {
            let mut path = path.clone();
            // As often as one name may stand for another.
            for _ in 0..8 {
                let (module, rest) = (0..=path.len()).rev().find_map(|len| {
                    let (module, _) = self.0.get_key_value(&path[..len])?;
                    Some((module, &path[len..]))
                })?;
                match rest.first().and_then(|next| handed_on.get(&(module, next))) {
                    Some(other) if **other != path => path = [&other[..], &rest[1..]].concat(),
                    _ => return Some(module),
                }
            }
            None
        };
        let imports_of = |(module, paths): (&&Path, &Vec<(Path, bool)>)| {
            let found = paths.iter().filter(|(_, is_handed_on)| !is_handed_on).filter_map(|(path, _)| resolve(path));
            found.filter(|found| found != module && !found.is_empty()).collect()
        };
        paths.iter().map(|(module, found)| (*module, imports_of((module, found)))).collect()
    }

    /// The modules that are in a circle, each circle by itself.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let imports = self.imports();
        let reached: BTreeMap<&Path, _> = self.0.keys().map(|module| (module, reach(&imports, module))).collect();
        let circle = |module: &Path| {
            let others = reached[module].iter().filter(|other| reached[**other].contains(module));
            others.map(|other| other.join("/")).collect::<Vec<_>>()
        };
        let all: BTreeSet<Vec<String>> = self.0.keys().map(circle).filter(|circle| !circle.is_empty()).collect();
        all.into_iter().collect()
    }
}

/// All that a module imports from, and what these do.
fn reach<'m>(imports: &BTreeMap<&'m Path, BTreeSet<&'m Path>>, from: &'m Path) -> BTreeSet<&'m Path> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(imports[module].iter().filter(|module| seen.insert(**module)));
    }
    seen
}

#[test]
fn a_circle_is_found() {
    let circles = |files: &[(&str, &str)]| {
        Modules::new(files.iter().map(|(name, text)| (name.to_string(), text.to_string()))).circles()
    };
    let a = ("x/a.rs", "use super::b::{self, B};\nuse crate::x::{c::C, d};");
    assert_eq!(circles(&[a, ("x/b.rs", ""), ("x/c.rs", "")]), [[""; 0]; 0]);
    assert_eq!(circles(&[a, ("x/b.rs", "fn f() -> super::a::A {}"), ("x/c.rs", "")]), [["x/a", "x/b"]]);
    assert_eq!(
        circles(&[a, ("x/b.rs", ""), ("x/c.rs", "use crate::y;"), ("y/mod.rs", "use crate::x::{\n    a,\n};")])[0]
            .len(),
        3
    );
    // By way of a folder that hands a name on, and by what a folder says of its files.
    let folder = ("x/mod.rs", "mod a;\nmod b;\npub use a::A;");
    assert_eq!(circles(&[folder, ("x/a.rs", "use super::b;"), ("x/b.rs", "use super::A;")]), [["x/a", "x/b"]]);
    assert_eq!(circles(&[("x/mod.rs", "mod a;\nuse a::A;\nstruct X;"), ("x/a.rs", "use super::X;")]), [["x", "x/a"]]);
}
