//! The environment variables of the library: which there are, and which values they know.

use std::ffi::OsStr;
use std::path::Path;

/// What a variable may hold.
#[derive(Clone, Copy, Debug)]
enum Value {
    Sinks,
    Switch,
    Size,
    Dir,
    File,
    Words(&'static [&'static str]),
    Any,
}

const SINKS: &[&str] =
    &["on", "off", "map", "jitdump", "region", "gdb", "unwinder", "1", "0", "true", "yes", "false", "no"];

const VARIABLES: &[(&str, Value)] = &[
    ("JITSYM", Value::Sinks),
    ("JITSYM_ADOPT", Value::Switch),
    ("JITSYM_DEBUG", Value::Any),
    ("JITSYM_DIR", Value::Dir),
    ("JITSYM_FORK", Value::Words(&["now", "off", "0", "on", "1"])),
    ("JITSYM_GDB", Value::Switch),
    ("JITSYM_JITDUMP_MAX", Value::Size),
    ("JITSYM_LATE", Value::Words(&["off", "0", "remember", "on", "1"])),
    ("JITSYM_LIB", Value::File),
    ("JITSYM_MAP_MAX", Value::Size),
    ("JITSYM_RECOVER", Value::Switch),
    ("JITSYM_REMOVE", Value::Switch),
    ("JITSYM_SPOOL", Value::Switch),
    ("JITSYM_SPOOL_DIR", Value::Dir),
    ("JITSYM_UNWIND", Value::Switch),
    ("JITDUMPDIR", Value::Dir),
    ("JITDUMP_USE_ARCH_TIMESTAMP", Value::Switch),
];

/// What a variable does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It is as it should be.
    Good,
    /// The library does not know it, or a word in it.
    Wrong(String),
    /// It turns everything off.
    Off,
    /// Everything in it is unknown, which turns everything off.
    WrongAndOff(String),
}

/// Looks at a variable; `None` if it is not one of ours.
pub fn look(name: &str, value: &OsStr) -> Option<Finding> {
    if !name.starts_with("JITSYM") && !name.starts_with("JITDUMP") || value.is_empty() {
        return None;
    }
    let Some((_, kind)) = VARIABLES.iter().find(|(known, _)| *known == name) else {
        // Those of others may begin so too.
        let like = most_like(name, VARIABLES.iter().map(|(known, _)| *known));
        let hint = like.map_or(String::new(), |like| format!(": did you mean {like}?"));
        return name.starts_with("JITSYM").then(|| Finding::Wrong(format!("{name} is no variable of libjitsym{hint}")));
    };
    let text = value.to_string_lossy();
    let unknown = |word: &str, known: &[&'static str]| {
        let like = most_like(&word.to_ascii_lowercase(), known.iter().copied());
        let hint = like.map_or(String::new(), |like| format!(": did you mean `{like}`?"));
        format!("{name} has a word `{word}` that is not known{hint}")
    };
    let wrong = match kind {
        Value::Sinks => return Some(sinks(&text, &unknown)),
        Value::Words(words) if !words.contains(&&*text) => Some(unknown(&text, words)),
        Value::Switch if !["0", "1", "on", "off"].contains(&&*text) => Some(unknown(&text, &["0", "1", "on", "off"])),
        Value::Size if !is_size(&text) => {
            Some(format!("{name}={text} is no size, such as 64M or 500k: it has no effect"))
        }
        Value::Dir if !Path::new(value).is_absolute() => Some(format!("{name}={text} is not an absolute path")),
        Value::File if !Path::new(value).is_file() => Some(format!("{name}={text}: there is no such file")),
        _ => None,
    };
    Some(wrong.map_or(Finding::Good, Finding::Wrong))
}

fn sinks(text: &str, unknown: &dyn Fn(&str, &[&'static str]) -> String) -> Finding {
    let words: Vec<&str> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let is_known = |word: &&&str| SINKS.iter().any(|known| known.eq_ignore_ascii_case(word));
    let turns_off = |word: &str| ["off", "0", "false", "no"].iter().any(|off| off.eq_ignore_ascii_case(word));
    let is_off = words.iter().filter(is_known).all(|word| turns_off(word));
    let wrong = words.iter().find(|word| !is_known(word)).map(|word| unknown(word, SINKS));
    match (wrong, is_off) {
        (Some(text), true) => Finding::WrongAndOff(text),
        (Some(text), false) => Finding::Wrong(text),
        (None, true) => Finding::Off,
        (None, false) => Finding::Good,
    }
}

fn is_size(text: &str) -> bool {
    let digits = text.trim().trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = &text.trim()[digits.len()..];
    digits.parse::<u64>().is_ok()
        && (unit.is_empty() || ["k", "m", "g"].iter().any(|known| known.eq_ignore_ascii_case(unit)))
}

/// The known word that is most like another, if any is.
pub fn most_like<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // One letter that is wrong, missing, too much or in another place; more in long words.
    let most = (word.len() / 3).max(1);
    let near = known.map(|known| (strsim::damerau_levenshtein(word, known), known)).filter(|&(far, _)| far <= most);
    near.min_by_key(|&(far, _)| far).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_values() {
        let look = |name, value: &str| look(name, OsStr::new(value));
        for (name, value) in [
            ("JITSYM", "map, JITDUMP"),
            ("JITSYM", "on"),
            ("JITSYM_MAP_MAX", "64M"),
            ("JITSYM_LATE", "remember"),
            ("JITSYM_DIR", "/tmp"),
        ] {
            assert_eq!(look(name, value), Some(Finding::Good), "{name}={value}");
        }
        assert_eq!(look("JITSYM", "off"), Some(Finding::Off));
        assert_eq!((look("HOME", "x"), look("JITSYM", "")), (None, None));
        let text = |found: Option<Finding>| match found {
            Some(Finding::Wrong(text)) => text,
            other => panic!("{other:?}"),
        };
        let both = look("JITSYM", "jitdmp");
        assert!(
            matches!(&both, Some(Finding::WrongAndOff(text)) if text.ends_with("did you mean `jitdump`?")),
            "{both:?}"
        );
        assert!(text(look("JITSYM", "map,jitdmp")).contains("`jitdump`"));
        assert!(text(look("JITSYM_JITDUMP_MAX", "lots")).contains("no size"));
        assert!(text(look("JITSYM_JITDUMPMAX", "1")).ends_with("did you mean JITSYM_JITDUMP_MAX?"));
        assert!(text(look("JITSYM_FORK", "nwo")).contains("`now`"));
        assert!(text(look("JITSYM_DIR", "tmp")).contains("absolute"));
    }
}
