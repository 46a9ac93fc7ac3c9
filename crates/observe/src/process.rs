//! The standard process metrics of Prometheus: CPU, memory, open files, start time. Read at each scrape.

use std::{
    fmt, fs,
    time::{SystemTime, UNIX_EPOCH},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

#[derive(Debug)]
pub(super) struct Process {
    started: f64,
}

impl Process {
    /// Must be called at the start of the process.
    pub(super) fn starting() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            started: since.as_secs_f64(),
        }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut show = |name: &str, help: &str, metric: &dyn EncodeMetric| {
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            let spent = seconds(usage.user_time()) + seconds(usage.system_time());
            show(
                "process_cpu_seconds",
                "Total user and system CPU time",
                &ConstCounter::new(spent),
            )?;
        }
        if let Some(bytes) = resident_memory() {
            let bytes = ConstGauge::new(bytes);
            show("process_resident_memory_bytes", "Resident memory size", &bytes)?;
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            let open = i64::try_from(files.count()).unwrap_or(i64::MAX);
            show(
                "process_open_fds",
                "Number of open file descriptors",
                &ConstGauge::new(open),
            )?;
        }
        let started = ConstGauge::new(self.started);
        show(
            "process_start_time_seconds",
            "Start time of the process, in seconds since 1970",
            &started,
        )
    }
}

fn seconds(time: TimeVal) -> f64 {
    #[allow(
        clippy::cast_precision_loss,
        reason = "a process lives less than 2^52 seconds"
    )]
    let (whole, micros) = (time.tv_sec() as f64, time.tv_usec() as f64);
    whole + micros / 1e6
}

/// The resident memory in bytes; proc(5) has it in KiB.
fn resident_memory() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
