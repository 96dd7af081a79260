//! Checks the environment variables of the library, and determines their effects.

use std::ffi::OsStr;

/// The result of checking a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The value is valid.
    Good,
    /// The variable, or a word in its value, is unknown to the library.
    Wrong(String),
    /// The value disables everything.
    Off,
    /// All words of the value are unknown to the library, and the value disables everything.
    WrongAndOff(String),
}

/// Checks a variable. `None` if it is not a variable of the library.
pub fn look(name: &str, value: &OsStr) -> Option<Finding> {
    if !name.starts_with("JITSYM") && !name.starts_with("JITDUMP") || value.is_empty() {
        return None;
    }
    let is_off = name == "JITSYM" && jitsym::turns_off(value);
    Some(match (jitsym::doubt(name.as_ref(), value), is_off) {
        (Some(text), true) => Finding::WrongAndOff(text),
        (Some(text), false) => Finding::Wrong(text),
        (None, true) => Finding::Off,
        (None, false) => Finding::Good,
    })
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
        assert!(
            matches!(look("JITSYM", "jitdmp"), Some(Finding::WrongAndOff(text)) if text.ends_with("did you mean jitdump?"))
        );
        assert!(matches!(look("JITSYM", "map,jitdmp"), Some(Finding::Wrong(text)) if text.contains("jitdump")));
        assert!(matches!(look("JITSYM_JITDUMP_MAX", "lots"), Some(Finding::Wrong(_))));
    }
}
