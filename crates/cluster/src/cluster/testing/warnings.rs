//! The warnings in the log of a test.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex, PoisonError},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, set_default},
};

/// Records the warnings that the current thread logs, until it is dropped.
pub struct Warnings {
    lines: Lines,
    _recorder: DefaultGuard,
}

type Lines = Arc<Mutex<Vec<String>>>;

impl Warnings {
    #[must_use]
    pub fn record() -> Self {
        let lines = Lines::default();
        let recorder = set_default(Recorder(Arc::clone(&lines)));
        Self {
            lines,
            _recorder: recorder,
        }
    }

    /// The fields of each warning, such as ` message=it failed error="refused"`.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Recorder(Lines);

impl Subscriber for Recorder {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        *of.level() == Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a String does not fail.
        let _written = write!(self.0, " {field}={value:?}");
    }
}
