//! Structured logs on standard error, as text for humans or JSON for collectors.

use std::{
    collections::HashMap,
    io::IsTerminal,
    sync::{Mutex, PoisonError},
};

use tracing_subscriber::EnvFilter;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// kube logs the whole body of a response it cannot decode, which may be a Secret, and each attempt to connect to a
/// cluster that does not answer. The callers log what they need of both.
const NOTHING_OF_CLIENTS: &str = "kube_client::client=off";

/// Starts logging for the rest of the process. `RUST_LOG` overrides `info`.
pub fn start(format: LogFormat) {
    let mut filter = EnvFilter::builder()
        .with_default_directive(tracing::Level::INFO.into())
        .from_env_lossy();
    if let Ok(directive) = NOTHING_OF_CLIENTS.parse() {
        filter = filter.add_directive(directive);
    }
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // A second start (tests) keeps the first one's settings.
    let _already = match format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}

/// A problem that may persist. It is logged when it starts and when it changes, not at every occurrence:
/// repeated lines would hide others.
#[derive(Debug, Default)]
pub struct Ongoing(Option<String>);

impl Ongoing {
    /// Whether the problem is new or has changed.
    pub fn is_news(&mut self, what: impl Into<String>) -> bool {
        let what = Some(what.into());
        let is_news = self.0 != what;
        self.0 = what;
        is_news
    }

    /// The problem is over: the next one is new again.
    pub fn is_over(&mut self) {
        self.0 = None;
    }
}

/// The problems of several objects, each of which is logged as an [`Ongoing`] one.
#[derive(Debug, Default)]
pub struct OngoingOfEach(Mutex<HashMap<String, Ongoing>>);

impl OngoingOfEach {
    /// Whether this problem of an object is new or has changed.
    pub fn is_news(&self, of: &str, what: impl Into<String>) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(of.to_owned()).or_default().is_news(what)
    }

    /// The problem of an object is over.
    pub fn is_over(&self, of: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(of);
    }

    /// Forgets the problems of all objects but these.
    pub fn keep(&self, objects: impl Fn(&str) -> bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|of, _| objects(of));
    }
}

#[cfg(test)]
mod tests {
    use super::{Ongoing, OngoingOfEach};

    #[test]
    fn problems_of_several_objects_are_logged_once_each() {
        let all = OngoingOfEach::default();
        for object in ["a", "b"] {
            assert!(all.is_news(object, "refused"));
            assert!(!all.is_news(object, "refused"));
        }
        all.is_over("a");
        all.keep(|object| object != "b");
        assert!(all.is_news("a", "refused") && all.is_news("b", "refused"));
    }

    #[test]
    fn a_lasting_state_is_logged_once() {
        let mut trouble = Ongoing::default();
        assert!(trouble.is_news("refused"));
        assert!(!trouble.is_news("refused"));
        assert!(trouble.is_news("no answer"), "it has changed");
        trouble.is_over();
        assert!(trouble.is_news("no answer"), "it has begun again");
    }
}
