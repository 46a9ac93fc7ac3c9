//! The metrics of a process, in one registry for `/metrics`.

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use liqo_csi_model::volume::DRIVER_NAME;

use super::process::Process;

/// Buckets from a cached response to a volume whose provisioning takes minutes.
const SECONDS: [f64; 14] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0,
];

/// The registry, and the metrics of every process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    operations: Family<Operation, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    driver_name: &'static str,
    method_name: String,
    grpc_status_code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
    component: &'static str,
}

impl Metrics {
    /// The metrics of `component`; `more` registers further ones before the registry is sealed.
    #[must_use]
    pub fn new(component: &'static str, more: impl FnOnce(&mut Registry)) -> Self {
        let mut registry = Registry::default();
        let operations = Family::new_with_constructor(latencies as fn() -> Histogram);
        registry.register_with_unit(
            "csi_plugin_operations",
            "Time this plugin took for a CSI call, by method and gRPC code",
            Unit::Seconds,
            operations.clone(),
        );
        let build = Family::<Build, Gauge>::default();
        build
            .get_or_create(&Build {
                version: env!("CARGO_PKG_VERSION"),
                component,
            })
            .set(1);
        registry.register(
            "liqo_csi_build_info",
            "Version and component of this process",
            build,
        );
        registry.register_collector(Box::new(Process::starting()));
        more(&mut registry);
        Self {
            registry: Arc::new(registry),
            operations,
        }
    }

    /// Records a finished CSI call. `method` is its path, `/csi.v1.Controller/CreateVolume`.
    pub fn operation(&self, method: &str, code: tonic::Code, took: Duration) {
        let operation = Operation {
            driver_name: DRIVER_NAME,
            method_name: method.to_owned(),
            grpc_status_code: code_name(code),
        };
        self.operations
            .get_or_create(&operation)
            .observe(took.as_secs_f64());
    }

    /// All metrics, in the `OpenMetrics` text format.
    pub fn print(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }
}

fn latencies() -> Histogram {
    Histogram::new(SECONDS)
}

/// The name of the code in Go's gRPC, and so in every CSI sidecar.
#[must_use]
pub fn code_name(code: tonic::Code) -> &'static str {
    use tonic::Code;
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_csi_operations_under_the_name_sidecars_use() {
        let metrics = Metrics::new("test", |_| {});
        metrics.operation(
            "/csi.v1.Identity/Probe",
            tonic::Code::Ok,
            Duration::from_millis(3),
        );
        let page = metrics.print().unwrap();
        let sample = "csi_plugin_operations_seconds_count{driver_name=\"storage.liqo.io\",\
                      method_name=\"/csi.v1.Identity/Probe\",grpc_status_code=\"OK\"} 1";
        assert!(page.contains(sample), "{page}");
    }

    #[test]
    fn process_metrics_are_exported() {
        let page = Metrics::new("test", |_| {}).print().unwrap();
        let value = |name: &str| -> f64 {
            let line = page.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
                .unwrap_or_else(|| panic!("no {name} in {page}"))
        };
        assert!(value("process_cpu_seconds_total ") >= 0.0);
        assert!(value("process_resident_memory_bytes ") > 1e6);
        assert!(value("process_open_fds ") >= 3.0);
        assert!(value("process_start_time_seconds ") > 1.7e9);
        assert!(page.contains("liqo_csi_build_info{version=\"0."), "{page}");
    }

    #[test]
    fn a_component_can_add_its_own() {
        let gauge: Gauge = Gauge::default();
        gauge.set(7);
        let metrics = Metrics::new("test", |registry| registry.register("twins", "Twins", gauge));
        assert!(metrics.print().unwrap().contains("twins 7"));
    }
}
