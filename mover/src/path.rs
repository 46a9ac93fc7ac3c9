//! Names and paths inside a tree, as bytes. All names from the peer are converted to these types first, so
//! that none of them can lead out of the tree.

use std::{cmp::Ordering, fmt};

/// One component: not empty, not `.` or `..`, without `/` and NUL, at most 255 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

/// A path below the root of a tree; the root itself is the empty path. At most [`TreePath::MAX`] bytes: what
/// the kernel accepts in one call.
///
/// The order is that of the walk: a directory before its contents, siblings by their bytes.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct TreePath(Box<[u8]>);

/// The longest text of a path in a message, in bytes; of a longer one both ends are shown. The error follows the path, and
/// the move's status has messages of at most 1024 bytes.
const LONGEST_SHOWN: usize = 600;

/// Bytes that are not a valid name or path.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0} is not a path inside a tree")]
pub struct BadPath(String);

impl Name {
    /// Parses one component.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadPath> {
        let fits = !bytes.is_empty() && bytes.len() <= 255 && bytes != b"." && bytes != b"..";
        if fits && !bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
            Ok(Self(bytes.into()))
        } else {
            Err(BadPath::of(bytes))
        }
    }

    /// The bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TreePath {
    /// The longest path, in bytes.
    pub const MAX: usize = 4095;

    /// The root of the tree.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// Parses a path of components separated by single slashes.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadPath> {
        if bytes.is_empty() {
            return Ok(Self::root());
        }
        if bytes.len() > Self::MAX {
            return Err(BadPath::of(bytes));
        }
        for component in bytes.split(|byte| *byte == b'/') {
            Name::parse(component).map_err(|_| BadPath::of(bytes))?;
        }
        Ok(Self(bytes.into()))
    }

    /// The path of an entry in this directory.
    pub fn child(&self, name: &Name) -> Result<Self, BadPath> {
        if self.is_root() {
            return Ok(Self(name.0.clone()));
        }
        let bytes = [&*self.0, b"/", &*name.0].concat();
        if bytes.len() > Self::MAX {
            return Err(BadPath::of(&bytes));
        }
        Ok(Self(bytes.into()))
    }

    /// Whether this is in that directory, at any depth.
    #[must_use]
    pub fn is_below(&self, directory: &Self) -> bool {
        let rest = self.0.strip_prefix(&*directory.0);
        rest.is_some_and(|rest| !rest.is_empty() && (directory.is_root() || rest.starts_with(b"/")))
    }

    /// Whether this is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of the path; none for the root.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Ord for TreePath {
    fn cmp(&self, other: &Self) -> Ordering {
        // A slash sorts before every byte of a name, so that `a/b` is before `a-b`.
        let rank = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
        self.0.iter().map(rank).cmp(other.0.iter().map(rank))
    }
}

impl PartialOrd for TreePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl BadPath {
    fn of(bytes: &[u8]) -> Self {
        let shown = bytes.get(..bytes.len().min(120)).unwrap_or_default();
        Self(format!("'{}'", Readable(shown)))
    }
}

/// Bytes in readable form: UTF-8 unchanged, everything else and control characters escaped.
pub(crate) struct Readable<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Readable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if character.is_control() || character == '\\' {
                    write!(f, "{}", character.escape_default())?;
                } else {
                    write!(f, "{character}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Readable(&self.0))
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str(".");
        }
        let text = Readable(&self.0).to_string();
        if text.len() <= LONGEST_SHOWN {
            return f.write_str(&text);
        }
        let head = text.floor_char_boundary(LONGEST_SHOWN / 2);
        let tail = text.ceil_char_boundary(text.len() - LONGEST_SHOWN / 2);
        write!(f, "{}…{}", &text[..head], &text[tail..])
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{self}'")
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{self}'")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn paths_that_leave_the_tree_are_refused() {
        for bad in [
            "/", "/a", "a/", "a//b", "..", "a/..", "../a", "a/../b", ".", "a/./b", "a\0b",
        ] {
            assert!(TreePath::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(TreePath::parse(&[b'a'; 256]).is_err());
        assert!(TreePath::parse("a/".repeat(3000).trim_end_matches('/').as_bytes()).is_err());
        assert_eq!(path("a/..b/...").as_bytes(), b"a/..b/...");
    }

    #[test]
    fn a_directory_is_ordered_before_its_content_and_that_before_siblings() {
        let mut paths = ["b", "a-b", "a/b/c", "", "a", "a/b", "a/b-"].map(path);
        paths.sort();
        assert_eq!(paths, ["", "a", "a/b", "a/b/c", "a/b-", "a-b", "b"].map(path));
    }

    #[test]
    fn shown_paths_have_no_control_characters() {
        assert_eq!(
            TreePath::parse(b"a\n\xff\\/\xc3\xa4").unwrap().to_string(),
            "a\\n\\xff\\\\/\u{e4}"
        );
    }

    #[test]
    fn a_long_path_is_shown_with_both_ends() {
        let shown = TreePath::parse(&[b"a/", &b"\xff/".repeat(2000)[..], "\u{e4}/z".as_bytes()].concat())
            .unwrap()
            .to_string();
        assert!(
            shown.starts_with("a/\\xff/") && shown.ends_with("\\xff/\u{e4}/z"),
            "{shown}"
        );
        assert!(shown.len() <= LONGEST_SHOWN + '…'.len_utf8(), "{}", shown.len());
        let short = "d/".repeat(LONGEST_SHOWN / 2 - 1) + "d";
        assert_eq!(path(&short).to_string(), short);
    }

    proptest! {
        #[test]
        fn paths_are_ordered_by_their_components(a in "[a-c/-]{0,9}", b in "[a-c/-]{0,9}") {
            if let (Ok(a), Ok(b)) = (TreePath::parse(a.as_bytes()), TreePath::parse(b.as_bytes())) {
                let parts = |path: &TreePath| -> Vec<Vec<u8>> {
                    if path.is_root() { return Vec::new() }
                    path.as_bytes().split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect()
                };
                prop_assert_eq!(a.cmp(&b), parts(&a).cmp(&parts(&b)));
            }
        }
    }
}
