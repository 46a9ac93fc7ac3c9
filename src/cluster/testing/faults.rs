//! Scripted faults: what happens to which requests, and how often.

use std::sync::Mutex;

/// What a faulty API server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Answers with this code and does nothing.
    Refuse(u16),
    /// Forbids it with this message.
    Forbid(&'static str),
    /// Does it, then answers with this code: the answer got lost.
    DoAndRefuse(u16),
    /// Never answers.
    Hang,
    /// Answers with 40 MiB of nothing.
    Oversize,
    /// Answers with something that is no object.
    Garbage,
    /// Tells a watch that its version is too old.
    Gone,
}

/// A fault.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    method: &'static str,
    path: String,
    act: Act,
    times: usize,
}

impl Fault {
    /// Hits every request of this method whose path contains `path`.
    pub(crate) fn new(method: &'static str, path: &str, act: Act) -> Self {
        Self {
            method,
            path: path.to_owned(),
            act,
            times: usize::MAX,
        }
    }

    /// Only so many times.
    pub(crate) fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }
}

#[derive(Default)]
pub(super) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    pub(super) fn add(&self, fault: Fault) {
        self.0.lock().unwrap().push(fault);
    }

    pub(super) fn hit(&self, method: &str, path: &str, watch: bool) -> Option<Act> {
        let mut faults = self.0.lock().unwrap();
        let fault = faults.iter_mut().find(|fault| {
            fault.times > 0
                && fault.method == method
                && path.contains(&fault.path)
                && (fault.act == Act::Gone) == watch
        })?;
        fault.times -= 1;
        Some(fault.act)
    }
}
