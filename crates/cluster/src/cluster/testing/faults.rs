//! Scripted faults: which requests fail, how, and how often; and changes of other clients just before a
//! request.

use std::sync::Mutex;

use super::store::Store;

/// How a faulty API server handles a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Answers with this code and does nothing.
    Refuse(u16),
    /// Answers requests that contain this text with the error that the object would be too large.
    TooLarge(&'static str),
    /// Refuses requests that contain this text as invalid, and names it.
    Invalid(&'static str),
    /// Stores the object without the field of this JSON pointer, as a server that does not know it.
    Drop(&'static str),
    /// Forbids the request with this message.
    Forbid(&'static str),
    /// Refuses the request with this code and message.
    Deny(u16, &'static str),
    /// Answers with the code 201, and as the object a failure with this code and message, as evictions of pods with two
    /// budgets are.
    Fail(u16, &'static str),
    /// Handles the request, then answers with this code: the real answer is lost.
    DoAndRefuse(u16),
    /// Answers a change with the unchanged object: a webhook has reverted the change.
    TakeOut,
    /// Never answers.
    Hang,
    /// Answers with 40 MiB without content.
    Oversize,
    /// Answers with text that is not an object.
    Garbage,
    /// Answers with a page of a list, and always reports another one.
    Endless,
    /// Answers a watch that its version is too old.
    Gone,
    /// Answers a watch with this code.
    RefuseWatch(u16),
    /// Sends more and more objects to a watch.
    Flood,
}

#[derive(Clone, Debug)]
pub struct Fault {
    method: &'static str,
    path: String,
    only_the_end: bool,
    act: Act,
    times: usize,
}

impl Fault {
    /// Hits every request of this method whose path contains `path`.
    pub fn new(method: &'static str, path: &str, act: Act) -> Self {
        Self {
            method,
            path: path.to_owned(),
            only_the_end: false,
            act,
            times: usize::MAX,
        }
    }

    /// Only requests whose path ends with it: lists, and not single objects.
    pub fn at_the_end(mut self) -> Self {
        self.only_the_end = true;
        self
    }

    /// Only this many times.
    pub fn times(mut self, times: usize) -> Self {
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

    pub(super) fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    /// The number of faults that were not used up.
    pub(super) fn left(&self) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|fault| fault.times > 0)
            .count()
    }

    pub(super) fn hit(&self, method: &str, path: &str, watch: bool) -> Option<Act> {
        let mut faults = self.0.lock().unwrap();
        let fault = faults.iter_mut().find(|fault| {
            fault.times > 0
                && fault.method == method
                && path.contains(&fault.path)
                && (!fault.only_the_end || path.ends_with(&fault.path))
                && matches!(fault.act, Act::Gone | Act::RefuseWatch(_) | Act::Flood) == watch
        })?;
        fault.times -= 1;
        Some(fault.act)
    }
}

/// A change by another client.
pub(super) type OtherChange = Box<dyn FnOnce(&Store) + Send>;

#[derive(Default)]
pub(super) struct OtherChanges(Mutex<Vec<(&'static str, String, OtherChange)>>);

impl OtherChanges {
    pub(super) fn add(&self, method: &'static str, path: &str, change: OtherChange) {
        self.0.lock().unwrap().push((method, path.to_owned(), change));
    }

    /// Makes a change once, before this request.
    pub(super) fn due(&self, method: &str, path: &str) -> Option<OtherChange> {
        let mut changes = self.0.lock().unwrap();
        let at = changes
            .iter()
            .position(|change| change.0 == method && change.1 == path)?;
        Some(changes.remove(at).2)
    }
}
