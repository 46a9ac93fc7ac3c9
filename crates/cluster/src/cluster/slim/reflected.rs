//! The fields of objects that the fabric copies into remote namespaces, and of their copies.

use crate::{
    cluster::view::Slim,
    offload::reflection::{CopyMetadata, Original, Slice},
};

/// Its topic is the name of its copy.
impl Slim for Original {
    fn topic(&self) -> &str {
        &self.copy
    }

    fn text(&self) -> usize {
        let selector = self.selector.iter().map(|(key, value)| key.len() + value.len());
        let namespaces = self.namespaces.iter().map(String::len);
        self.copy.len() + self.fingerprint.text() + selector.chain(namespaces).sum::<usize>()
    }
}

/// Its topics are its name and its Service.
impl Slim for Slice {
    fn topic(&self) -> &str {
        &self.name
    }

    fn topics(&self) -> impl Iterator<Item = &str> {
        [self.name.as_str(), self.of_service.as_str()].into_iter()
    }
}

impl Slim for CopyMetadata {
    fn topic(&self) -> &str {
        &self.name
    }

    fn text(&self) -> usize {
        self.name.len() + self.version.len()
    }
}
