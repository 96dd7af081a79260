//! Selects the functions to be examined, by name.

/// Patterns for names. An empty list selects every name.
#[derive(Clone, Debug, Default)]
pub struct Patterns(pub Vec<String>);

impl Patterns {
    /// Whether a name matches one of the patterns. A `*` matches any text.
    pub fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|pattern| fits(pattern, name))
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (pattern, name) in
            [("f", "f"), ("*", ""), ("py::*", "py::f:a.py"), ("*:a.py", "py::f:a.py"), ("a*b*c", "aXbYbc")]
        {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("f", "ff"), ("f", ""), ("py::*", "f"), ("a*b*c", "acb"), ("ab*ba", "aba")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
        assert!(Patterns::default().has("anything"));
        assert!(!Patterns(vec!["x".into()]).has("anything"));
    }
}
