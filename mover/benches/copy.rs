//! Compares the mover with `rsync -aHAXS --numeric-ids --delete` and `cp -a`, on this machine, over the
//! loopback interface: `make bench-move`. The mover's lanes have TLS; rsync talks to a daemon in clear text,
//! which is to its advantage. All times include `syncfs` on the target; the runs of the contenders
//! alternate.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure ends the race")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

use std::{
    fs::{self, File},
    io::Write as _,
    net::{TcpListener, TcpStream},
    os::unix::fs::{FileExt, MetadataExt, lchown, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use rustix::fs::{XattrFlags, setxattr};

const UID: &str = "bench";

#[derive(Parser)]
struct Options {
    /// Data sets: A (small files with all metadata), B (large files), C (a sparse file),
    /// D (very many small files).
    #[arg(default_values = ["A", "B", "C"])]
    sets: Vec<String>,
    /// Number of runs of each contender.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// A fraction of the sizes, for a quick run.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Directory for the data: about 7 GiB.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Empty the machine's page cache before each run.
    #[arg(long)]
    cold: bool,
    /// Data lanes of the mover.
    #[arg(long, default_value_t = 4)]
    lanes: u32,
    /// The argument that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let options = Options::parse();
    let folder = match &options.folder {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let folder = folder.unwrap();
    for set in &options.sets {
        Race {
            options: &options,
            folder: folder.path(),
            set,
        }
        .run();
    }
}

/// Bytes that do not compress.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

struct Race<'a> {
    options: &'a Options,
    folder: &'a Path,
    set: &'a str,
}

/// The times of each contender, run by run.
#[derive(Default)]
struct Times(Vec<(&'static str, Vec<f64>)>);

impl Times {
    fn add(&mut self, what: &'static str, time: f64) {
        match self.0.iter_mut().find(|(name, _)| *name == what) {
            Some((_, times)) => times.push(time),
            None => self.0.push((what, vec![time])),
        }
    }

    fn print(&self, set: &str) {
        let row = |times: &[f64]| {
            let mut times = times.to_vec();
            times.sort_by(f64::total_cmp);
            (times[times.len() / 2], times[0], times[times.len() - 1])
        };
        for (name, times) in &self.0 {
            let (median, least, most) = row(times);
            println!("{set}  {name:<34} {median:>8.2} s  [{least:.2} - {most:.2}]");
        }
        for (ours, theirs) in [
            ("mover, first", "rsync, first"),
            ("mover, first", "cp -a"),
            ("mover, last and verified", "rsync, again"),
            ("mover, unchanged", "find, cold or not as the rest"),
        ] {
            let get = |name| {
                self.0
                    .iter()
                    .find(|(other, _)| *other == name)
                    .map(|(_, times)| times)
            };
            let (Some(ours_took), Some(theirs_took)) = (get(ours), get(theirs)) else {
                continue;
            };
            let ratios: Vec<f64> = theirs_took
                .iter()
                .zip(ours_took)
                .map(|(theirs, ours)| theirs / ours)
                .collect();
            let (median, least, most) = row(&ratios);
            println!("{set}  {theirs} / {ours}: {median:.2} [{least:.2} - {most:.2}]");
        }
    }
}

impl Race<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn scaled(&self, size: u64) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size")]
        let scaled = (size as f64 * self.options.scale) as u64;
        scaled.max(1)
    }

    fn run(&self) {
        let source = self.at("source");
        fs::create_dir(&source).unwrap();
        self.make(&source);
        run(Command::new(env!("CARGO_BIN_EXE_liqo-csi-mover"))
            .args(["issue", "--move", UID])
            .arg(self.at("credentials")));
        let mut times = Times::default();
        for round in 0..self.options.runs {
            for target in ["by-mover", "by-rsync", "by-cp"] {
                fs::create_dir(self.at(target)).unwrap();
            }
            // Alternating, because the state of the disk differs between the first and the last contender.
            for turn in 0..3 {
                self.settle();
                match (round + turn) % 3 {
                    0 => times.add("mover, first", self.mover(&["--unverified"])),
                    1 => times.add("rsync, first", self.rsync()),
                    _ => times.add("cp -a", self.copy()),
                }
            }
            self.settle();
            times.add("mover, reading back", self.receive_only(&[]));
            self.settle();
            times.add("mover, unchanged", self.mover(&["--unverified"]));
            self.settle();
            times.add(
                "find, cold or not as the rest",
                timed(|| {
                    run(Command::new("find")
                        .arg(&source)
                        .args(["-printf", "%p %s %T@ %C@ %i %m\n"])
                        .stdout(Stdio::null()));
                }),
            );
            self.change(&source, round as u64);
            for turn in 0..2 {
                self.settle();
                if (round + turn) % 2 == 0 {
                    times.add("mover, last and verified", self.mover(&[]));
                } else {
                    times.add("rsync, again", self.rsync());
                }
            }
            let compared = Command::new("rsync")
                .args([
                    "-aHAXn",
                    "--numeric-ids",
                    "--delete",
                    "-i",
                    "--exclude=/.liqo-move-*",
                    "--modify-window=-1",
                ])
                .args([source.join(""), self.at("by-mover").join("")])
                .output()
                .unwrap();
            assert!(
                compared.stdout.iter().all(|byte| *byte != b'>'),
                "{}",
                String::from_utf8_lossy(&compared.stdout)
            );
            for target in ["by-mover", "by-rsync", "by-cp"] {
                fs::remove_dir_all(self.at(target)).unwrap();
            }
        }
        times.print(self.set);
        fs::remove_dir_all(source).unwrap();
    }

    fn settle(&self) {
        rustix::fs::sync();
        if self.options.cold {
            fs::write("/proc/sys/vm/drop_caches", "3").expect("--cold needs root");
        }
    }

    fn make(&self, root: &Path) {
        match self.set {
            "A" => self.small_files(root, 40_000, 16 << 10, true),
            "D" => self.small_files(root, 1_000_000, 4 << 10, false),
            "B" => {
                let mut data = File::create(root.join("data")).unwrap();
                for at in 0..self.scaled(1536) {
                    data.write_all(&noise(at, 1 << 20)).unwrap();
                }
                let mut log = File::create(root.join("log")).unwrap();
                for at in 0..self.scaled(512) * 8000 {
                    writeln!(log, "{at:012} a line of a log with words that repeat: request {} of {} served by worker {} in {} ms", at * 7919 % 1_000_003, at, at % 16, at * 31 % 997).unwrap();
                }
            }
            "C" => {
                let file = File::create(root.join("sparse")).unwrap();
                let size = self.scaled(20 << 10) << 20;
                file.set_len(size).unwrap();
                for at in 0..200 {
                    file.write_all_at(&noise(at, 1 << 20), size / 200 * at).unwrap();
                }
            }
            other => panic!("there is no data set {other}"),
        }
    }

    fn small_files(&self, root: &Path, count: u64, most: u64, with_metadata: bool) {
        for at in 0..self.scaled(count) {
            let folder = root.join(format!("d{:02}/e{:02}", at % 20, at / 20 % 40));
            if at < 800 {
                fs::create_dir_all(&folder).unwrap();
            }
            let path = folder.join(format!("file-{at}"));
            fs::write(&path, noise(at, usize::try_from(at * 7919 % most).unwrap())).unwrap();
            if !with_metadata {
                continue;
            }
            if at % 3 == 0 {
                setxattr(&path, "user.origin", b"somewhere", XattrFlags::empty()).unwrap();
            }
            let owner = u32::try_from(at % 5).unwrap() * 1000;
            if rustix::process::geteuid().is_root() {
                lchown(&path, Some(owner), Some(owner)).unwrap();
            }
            match at % 20 {
                0 => symlink(format!("file-{at}"), folder.join(format!("link-{at}"))).unwrap(),
                1 => fs::hard_link(&path, folder.join(format!("hard-{at}"))).unwrap(),
                _ => {}
            }
        }
    }

    /// One file in a hundred, or some pages and some more lines.
    fn change(&self, root: &Path, round: u64) {
        match self.set {
            "A" | "D" => {
                let count = self.scaled(if self.set == "A" { 40_000 } else { 1_000_000 });
                for at in (round..count).step_by(100) {
                    let path = root.join(format!("d{:02}/e{:02}/file-{at}", at % 20, at / 20 % 40));
                    let mut file = File::options().append(true).open(path).unwrap();
                    file.write_all(b"more").unwrap();
                }
            }
            "B" => {
                let data = File::options().write(true).open(root.join("data")).unwrap();
                let size = data.metadata().unwrap().size();
                for at in 0..64 {
                    data.write_all_at(
                        &noise(round * 100 + at, 8192),
                        (at * 40_503_373 + round * 7919) % (size - 8192),
                    )
                    .unwrap();
                }
                File::options()
                    .append(true)
                    .open(root.join("log"))
                    .unwrap()
                    .write_all(&noise(round, 1 << 20))
                    .unwrap();
            }
            _ => {
                let file = File::options().write(true).open(root.join("sparse")).unwrap();
                let size = file.metadata().unwrap().size();
                for at in 0..20 {
                    file.write_all_at(&noise(round * 100 + at, 8192), size / 20 * at + round * 4096)
                        .unwrap();
                }
            }
        }
    }

    fn side(&self, verb: &str, credentials: &str, root: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_liqo-csi-mover"));
        command.args([verb, "--move", UID, "--root"]).arg(self.at(root));
        command
            .arg("--credentials")
            .arg(self.at("credentials").join(credentials))
            .stdout(Stdio::null());
        command
    }

    /// A pass with separate processes, from their start to their end.
    fn mover(&self, extra: &[&str]) -> f64 {
        let address = format!("127.0.0.1:{}", free_port());
        timed(|| {
            let mut receiver = self.side("target", "target", "by-mover");
            receiver
                .args(["--passes", "1", "--keep-journal", "--listen", &address])
                // The benchmark is about files that were not changed for a while.
                .args(["--longest-write", "20"])
                .args(extra);
            let receiver = Running(receiver.spawn().unwrap());
            await_port(&address);
            let mut sender = self.side("source", "source", "source");
            let sender = Running(
                sender
                    .args(["--connect", &address, "--lanes", &self.options.lanes.to_string()])
                    .spawn()
                    .unwrap(),
            );
            receiver.done();
            sender.done();
        })
    }

    fn receive_only(&self, extra: &[&str]) -> f64 {
        timed(|| {
            let mut receiver = self.side("target", "target", "by-mover");
            run(receiver
                .args(["--passes", "0", "--keep-journal", "--listen", "127.0.0.1:0"])
                .args(extra));
        })
    }

    fn rsync(&self) -> f64 {
        let port = free_port();
        let config = self.at("rsyncd.conf");
        let module = self.at("by-rsync");
        let text = format!(
            "use chroot = no\nuid = 0\ngid = 0\n[target]\npath = {}\nread only = no\n",
            module.display()
        );
        fs::write(&config, text).unwrap();
        let mut daemon = Command::new("rsync");
        daemon.args([
            "--daemon",
            "--no-detach",
            "--address=127.0.0.1",
            &format!("--port={port}"),
        ]);
        let daemon = Running(
            daemon
                .arg(format!("--config={}", config.display()))
                .spawn()
                .unwrap(),
        );
        await_port(&format!("127.0.0.1:{port}"));
        let took = timed(|| {
            let mut client = Command::new("rsync");
            client
                .args(["-aHAXS", "--numeric-ids", "--delete"])
                .arg(self.at("source").join(""));
            run(client.arg(format!("rsync://127.0.0.1:{port}/target/")));
            sync(&module);
        });
        drop(daemon);
        took
    }

    fn copy(&self) -> f64 {
        let target = self.at("by-cp");
        timed(|| {
            run(Command::new("cp")
                .args(["-a", "--sparse=always"])
                .arg(self.at("source").join("."))
                .arg(&target));
            sync(&target);
        })
    }
}

/// A process that is killed when this value is dropped.
struct Running(Child);

impl Running {
    fn done(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn timed(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64()
}

fn sync(path: &Path) {
    rustix::fs::syncfs(File::open(path).unwrap()).unwrap();
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn await_port(address: &str) {
    let until = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < until, "no process listens on {address}");
        thread::sleep(Duration::from_millis(2));
    }
}
