//! The lease that lets one replica run the background loops. It only uses the local clock: a lease is stale
//! if this replica did not see it renewed for the duration that the holder has set.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::coordination::v1::{Lease as KubeLease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    cluster::{ApiError, Cluster, Objects},
    observe::{
        crash::{self, Step},
        log::Ongoing,
    },
};

const NAME: &str = "storage-liqo-io-reconcilers";
/// How many seconds other replicas wait for a holder that does not renew.
const DURATION: i32 = 15;
/// When a holder that cannot renew stops: before another replica may start.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RENEW: Duration = Duration::from_secs(4);
const RETRY: Duration = Duration::from_secs(3);

/// This replica's handle on the lease.
pub struct Lease(Arc<Handle>);

struct Handle {
    leases: Objects<KubeLease>,
    name: &'static str,
    me: String,
    /// The last version of another replica's lease, and since when it was seen.
    seen: Mutex<Option<(String, Instant)>>,
}

impl Lease {
    #[must_use]
    pub fn new(home: &Cluster, namespace: &str, me: &str) -> Self {
        Self::named(NAME, home, namespace, me)
    }

    /// A lease with this name.
    #[must_use]
    pub fn named(name: &'static str, home: &Cluster, namespace: &str, me: &str) -> Self {
        Self(Arc::new(Handle {
            name,
            leases: home.within(namespace),
            me: me.to_owned(),
            seen: Mutex::default(),
        }))
    }

    /// Waits for the lease, then runs `work` for as long as the lease can be renewed. A separate task renews
    /// it, so that computations do not delay that.
    pub async fn lead(&self, work: impl AsyncFn()) {
        let mut trouble = Ongoing::default();
        let side = &self.0;
        let acquired = loop {
            let began = Instant::now();
            match side.take().await {
                Ok(true) => break began,
                Ok(false) => trouble.is_over(),
                Err(error) if trouble.is_news(error.to_string()) => {
                    tracing::warn!(%error, "cannot acquire the lease of the background loops");
                }
                Err(_) => {}
            }
            sleep(RETRY).await;
        };
        tracing::info!(holder = side.me, "running the background loops");
        let keeper = Arc::clone(side);
        let kept = AbortOnDropHandle::new(tokio::spawn(async move { keeper.keep(acquired).await }));
        tokio::select! {
            () = work() => {}
            _ended = kept => tracing::warn!("lost the lease of the background loops"),
        }
    }

    /// Lets another replica start at once.
    pub async fn release(&self) {
        self.0.release().await;
    }
}

impl Handle {
    async fn release(&self) {
        let Ok(Some(lease)) = self.leases.get(self.name).await else {
            return;
        };
        if self.is_mine(&lease) {
            let free = json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}});
            if let Err(error) = self.write(&lease, free).await {
                tracing::warn!(%error, "cannot release the lease of the background loops");
            }
        }
    }

    async fn take(&self) -> Result<bool, ApiError> {
        let Some(lease) = self.leases.get(self.name).await? else {
            let fresh = KubeLease {
                metadata: ObjectMeta {
                    name: Some(self.name.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(0)),
            };
            let created = crash::around(Step::LeaseWrite, self.leases.create(&fresh)).await;
            return created.map(|created| created.is_some());
        };
        if !self.is_mine(&lease) && !self.is_free(&lease) {
            return Ok(false);
        }
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        let taken = self.spec(transitions.unwrap_or_default() + 1);
        self.write(&lease, json!({ "spec": taken })).await
    }

    /// Renews until that fails for too long, or another replica has the lease. Times count from before a write,
    /// because other replicas may see it long before its answer arrives here.
    async fn keep(&self, mut renewed: Instant) {
        let (mut next, mut trouble) = (renewed + RENEW, Ongoing::default());
        loop {
            let end = renewed + RENEW_DEADLINE;
            sleep_until(next.min(end)).await;
            let began = Instant::now();
            match timeout_at(end, self.renew()).await {
                Ok(Ok(true)) => {
                    renewed = began;
                    trouble.is_over();
                }
                Ok(Ok(false)) => return,
                Ok(Err(error)) if trouble.is_news(error.to_string()) => {
                    tracing::warn!(%error, "cannot renew the lease of the background loops");
                }
                Ok(Err(_)) | Err(_) => {}
            }
            if renewed.elapsed() >= RENEW_DEADLINE {
                return;
            }
            next = began + RENEW;
        }
    }

    async fn renew(&self) -> Result<bool, ApiError> {
        match self.leases.get(self.name).await? {
            Some(lease) if self.is_mine(&lease) => {
                self.write(
                    &lease,
                    json!({"spec": {"renewTime": MicroTime(jiff::Timestamp::now())}}),
                )
                .await
            }
            _ => Ok(false),
        }
    }

    /// Writes onto exactly the lease that was read; false after a conflict.
    async fn write(&self, read: &KubeLease, mut patch: Value) -> Result<bool, ApiError> {
        patch["metadata"]["resourceVersion"] = json!(read.metadata.resource_version);
        let written = crash::around(Step::LeaseWrite, self.leases.merge(self.name, &patch)).await;
        match written {
            Err(error) if error.is_conflict() => Ok(false),
            other => other.map(|written| written.is_some()),
        }
    }

    fn spec(&self, transitions: i32) -> LeaseSpec {
        let now = MicroTime(jiff::Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(DURATION),
            lease_transitions: Some(transitions),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }
    }

    fn is_mine(&self, lease: &KubeLease) -> bool {
        holder(lease) == Some(&self.me)
    }

    fn is_free(&self, lease: &KubeLease) -> bool {
        if holder(lease).is_none_or(str::is_empty) {
            return true;
        }
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let promised = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let promised = u64::try_from(promised.unwrap_or(DURATION)).unwrap_or_default();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.as_ref() {
            Some((known, since)) if *known == version => since.elapsed() >= Duration::from_secs(promised),
            _ => {
                *seen = Some((version, Instant::now()));
                false
            }
        }
    }
}

fn holder(lease: &KubeLease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::FutureExt;
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::cluster::{
        Calls,
        testing::{Act, FakeApi, Fault, StoppedClock},
    };

    const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/ours/leases/storage-liqo-io-reconcilers";

    fn holder_of(api: &FakeApi) -> String {
        let lease = api.object(PATH).unwrap();
        lease["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    #[tokio::test]
    async fn only_one_replica_holds_the_lease() {
        let api = FakeApi::start().await;
        let home = api.cluster_unwatched().await;
        let (first, second) = (Lease::new(&home, "ours", "a"), Lease::new(&home, "ours", "b"));
        assert_eq!(first.0.take().await, Ok(true));
        assert_eq!(second.0.take().await, Ok(false));
        assert_eq!(
            first.0.take().await,
            Ok(true),
            "after a restart under the same name"
        );
        assert_eq!(first.0.renew().await, Ok(true));
        assert_eq!(second.0.renew().await, Ok(false));

        first.release().await;
        assert_eq!(holder_of(&api), "");
        assert_eq!(second.0.take().await, Ok(true));
        assert_eq!(first.0.renew().await, Ok(false));
        first.release().await;
        assert_eq!(holder_of(&api), "b", "one does not release what another holds");
    }

    #[tokio::test]
    async fn an_expired_lease_is_taken_over() {
        let api = FakeApi::start().await;
        let home = api.cluster_unwatched().await;
        let (first, second) = (Lease::new(&home, "ours", "a"), Lease::new(&home, "ours", "b"));
        first.0.take().await.unwrap();
        api.change(PATH, |lease| lease["spec"]["leaseDurationSeconds"] = 0.into());
        assert_eq!(second.0.take().await, Ok(false), "seen for the first time");
        first.0.renew().await.unwrap();
        assert_eq!(second.0.take().await, Ok(false), "it was renewed");
        assert_eq!(second.0.take().await, Ok(true), "it was not");
    }

    #[tokio::test]
    async fn a_race_has_one_winner() {
        let api = FakeApi::start().await;
        let home = api.cluster_unwatched().await;
        let first = Lease::new(&home, "ours", "a");
        first.0.take().await.unwrap();
        let old = first.0.leases.get(NAME).await.unwrap().unwrap();
        first.0.renew().await.unwrap();
        assert_eq!(
            first
                .0
                .write(&old, json!({"spec": {"holderIdentity": "b"}}))
                .await,
            Ok(false)
        );
        api.fault(Fault::new("GET", "leases", Act::Refuse(403)));
        assert!(first.0.renew().await.is_err());
    }

    #[tokio::test]
    async fn work_ends_with_the_lease() {
        let api = FakeApi::start().await;
        let home = api.cluster_unwatched().await;
        let lease = Lease::new(&home, "ours", "a");
        let work = async || {
            api.change(PATH, |lease| lease["spec"]["holderIdentity"] = "b".into());
            pending::<()>().await;
        };
        let patience = Duration::from_secs(30);
        timeout(patience, lease.lead(work))
            .await
            .expect("the work did not end");
    }

    #[tokio::test]
    async fn a_lease_counts_from_before_its_write() {
        let api = FakeApi::start().await;
        // Longer than the answer takes.
        let calls = Calls::without_metrics(Duration::from_mins(1));
        let home = api.cluster_with(calls).await;
        let lease = Lease::new(&home, "ours", "a");
        let (leases, _) = PATH.rsplit_once('/').unwrap();
        let _clock = StoppedClock::new();
        // The answer is late: the first poll of `advance` sets the clock.
        api.before("POST", leases, |_| {
            assert!(advance(RENEW_DEADLINE * 2).now_or_never().is_none());
        });
        let led = lease.lead(async || pending::<()>().await);
        // Sooner than the first renewal after the answer, which may fail and end the work as well.
        timeout(RENEW_DEADLINE * 2 + RENEW / 2, led)
            .await
            .expect("the work still runs although another replica may acquire the lease");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn blocking_work_does_not_delay_renewal() {
        let api = FakeApi::start().await;
        let home = api.cluster_unwatched().await;
        let lease = Lease::new(&home, "ours", "a");
        let renewed = || api.object(PATH).unwrap()["spec"]["renewTime"].clone();
        let work = async || {
            let (before, began) = (renewed(), std::time::Instant::now());
            while renewed() == before {
                assert!(began.elapsed() < Duration::from_secs(30), "it was never renewed");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        lease.lead(work).await;
    }
}
