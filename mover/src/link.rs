//! A target's connection to its source: the lanes, the threads that serve them, and how
//! it ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use prost::Message as _;

use crate::{
    apply::{Desk, Table, receive},
    error::Error,
    lanes::{Reader, TargetLanes},
    message::{Asked, Down, Ready, Said, Up},
    session::{Fate, Shared},
    tree::Tree,
    wire::FrameKind,
};

pub(crate) struct Link {
    pub(crate) up: Reader,
    pub(crate) down: Arc<Shared>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) fate: Arc<Fate>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Link {
    /// Starts to take content for this tree, or for devices.
    pub(crate) fn new(lanes: TargetLanes, tree: Option<Arc<Tree>>) -> Self {
        let TargetLanes {
            up,
            down,
            data,
            cutter,
            direct,
        } = lanes;
        let fate = Arc::new(Fate::new(cutter));
        let down = Shared::new(down);
        let desk = Arc::new(Desk {
            tree,
            table: Table::default(),
            received: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            direct,
        });
        let mut threads = vec![down.keep_alive(&fate)];
        threads.extend(data.into_iter().map(|lane| {
            let (desk, fate) = (Arc::clone(&desk), Arc::clone(&fate));
            thread::spawn(move || {
                if let Err(error) = receive(&desk, lane, &fate) {
                    fate.lane_failed(error);
                }
            })
        }));
        Self {
            up,
            down,
            desk,
            fate,
            threads,
        }
    }

    /// What the source says next.
    pub(crate) fn hear(&mut self) -> Result<Said, Error> {
        hear(&mut self.up)
    }

    /// The source's word that a pass has begun.
    pub(crate) fn ready(&mut self) -> Result<Ready, Error> {
        match self.hear()? {
            Said::Ready(ready) => {
                let expected = ready.used.max(ready.device_size);
                self.desk.expected.store(expected, Ordering::Relaxed);
                self.desk.settled.store(0, Ordering::Relaxed);
                Ok(ready)
            }
            _ => Err(Error::Protocol("it does not begin the pass".to_owned())),
        }
    }

    /// Ends the session for a reason of this side, and tells the source.
    pub(crate) fn give_up(&self, error: Error) -> Error {
        let error = self.fate.take_failure().unwrap_or(error);
        if !matches!(error, Error::Cut(_) | Error::Peer(_)) {
            self.down.last_words(&asked(Asked::Failed(error.to_string())));
        }
        self.fate.end();
        error
    }

    /// Lets the source go.
    pub(crate) fn end(&self) {
        // If it cannot be told, it notices that the connection ends.
        let _ = self.down.send(&asked(Asked::Bye(true)), true);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.fate.end();
        for thread in self.threads.drain(..) {
            // A lane that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Desk {
    /// Bytes of content that have arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Bytes of a device that are the same on both sides.
    pub(crate) fn settled(&self) -> Option<u64> {
        let is_device = self.tree.is_none();
        is_device.then(|| self.settled.load(Ordering::Relaxed))
    }

    /// Bytes that the source's file system holds; zero as long as that is not known.
    pub(crate) fn expected(&self) -> u64 {
        self.expected.load(Ordering::Relaxed)
    }
}

pub(crate) fn asked(asked: Asked) -> Down {
    Down { asked: Some(asked) }
}

pub(crate) fn hear(up: &mut Reader) -> Result<Said, Error> {
    let message =
        Up::decode(up.next_of(FrameKind::Control)?).map_err(|error| Error::Protocol(error.to_string()))?;
    match message.said {
        Some(Said::Failed(why)) => Err(Error::Peer(why)),
        Some(said) => Ok(said),
        None => Err(Error::Protocol("it said nothing".to_owned())),
    }
}
