//! What a turn costs: time, latencies, processor time of this process and of the database's, memory.
//!
//! Processor time and memory come from `/proc`; where there is none they are unknown, never zero. The sink's thread is
//! taken out of the program's processor time, because a receiver elsewhere would not cost it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::report::Figures;

/// What Linux counts processor time in, whatever the kernel's own tick is.
const TICK: Duration = Duration::from_millis(10);

/// Where processor time is read from.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    /// The sink's thread.
    pub sink: Option<PathBuf>,
    /// The process that started PostgreSQL's backends, where it runs on this machine.
    pub server: Option<u32>,
}

/// Latencies of one turn, in microseconds.
#[derive(Debug, Default)]
pub struct Latencies(Mutex<Vec<u64>>);

impl Latencies {
    /// Notes one.
    pub fn note(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(micros);
    }

    fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// A turn under way.
#[derive(Debug)]
pub struct Turn {
    began: Instant,
    own: Option<Duration>,
    sink: Option<Duration>,
    server: Option<Duration>,
}

impl Turn {
    /// Begins it.
    pub fn begin(processes: &Processes) -> Self {
        let (own, sink, server) = read(processes);
        Self { began: Instant::now(), own, sink, server }
    }

    /// Ends it and adds it up.
    pub fn end(self, processes: &Processes, count: usize, latencies: &Latencies, sum: &mut Sum) {
        let elapsed = self.began.elapsed();
        let (own, sink, server) = read(processes);
        let since = |now: Option<Duration>, then: Option<Duration>| Some(now?.saturating_sub(then?));
        let own = since(own, self.own).map(|own| own.saturating_sub(since(sink, self.sink).unwrap_or_default()));
        let add = |sum: Option<Duration>, more: Option<Duration>| Some(sum.unwrap_or_default() + more?);
        sum.own = add(sum.own, own);
        sum.server = add(sum.server, since(server, self.server));
        sum.note_memory();
        sum.add(count as u64, elapsed, latencies);
    }
}

/// The turns of one subject or limit, added up.
#[derive(Debug, Default)]
pub struct Sum {
    count: u64,
    elapsed: Duration,
    own: Option<Duration>,
    server: Option<Duration>,
    memory: Option<u64>,
    latencies: Vec<u64>,
}

impl Sum {
    /// Notes how much memory is in use now; the largest is kept.
    pub fn note_memory(&mut self) {
        self.memory = self.memory.max(memory());
    }

    /// Adds what has no turn of its own: how many, in which time, with which latencies.
    pub fn add(&mut self, count: u64, elapsed: Duration, latencies: &Latencies) {
        self.count += count;
        self.elapsed += elapsed;
        self.latencies.extend(latencies.take());
    }

    /// The figures.
    pub fn figures(mut self, name: &'static str) -> Figures {
        self.latencies.sort_unstable();
        let millis = |micros: u64| micros as f64 / 1000.0;
        let at = |share: f64| {
            let last = self.latencies.len().checked_sub(1)?;
            self.latencies.get((last as f64 * share).round() as usize).copied().map(millis)
        };
        let per_thousand = |time: Duration| time.as_secs_f64() * 1e6 / (self.count.max(1) as f64);
        Figures {
            name,
            count: self.count,
            seconds: self.elapsed.as_secs_f64(),
            per_second: self.count as f64 / self.elapsed.as_secs_f64().max(1e-9),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            max_ms: at(1.0),
            cpu_ms_per_1000: self.own.map(per_thousand),
            server_cpu_ms_per_1000: self.server.map(per_thousand),
            rss_mib: self.memory.map(|kib| kib as f64 / 1024.0),
        }
    }
}

fn read(processes: &Processes) -> (Option<Duration>, Option<Duration>, Option<Duration>) {
    let own = Stat::read(Path::new("/proc/self/stat")).map(|stat| stat.own);
    let sink = processes.sink.as_deref().and_then(Stat::read).map(|stat| stat.own);
    (own, sink, processes.server.and_then(server))
}

#[cfg(feature = "postgres")]
/// The process that started this backend, if both are PostgreSQL's and on this machine.
pub fn server_of(backend: u32) -> Option<u32> {
    let stat = Stat::read(Path::new(&format!("/proc/{backend}/stat")))?;
    let name = std::fs::read_to_string(format!("/proc/{}/comm", stat.parent)).ok()?;
    // Numbers of processes of another machine could meet one of ours.
    name.starts_with("postgres").then_some(stat.parent)
}

/// All that the server has used: itself, its children, and those that have ended.
fn server(parent: u32) -> Option<Duration> {
    let itself = Stat::read(Path::new(&format!("/proc/{parent}/stat")))?;
    let children = std::fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let is_process = entry.file_name().to_str()?.bytes().all(|byte| byte.is_ascii_digit());
        let stat = is_process.then(|| Stat::read(&entry.path().join("stat"))).flatten()?;
        (stat.parent == parent).then_some(stat.own)
    });
    Some(itself.own + itself.ended + children.sum::<Duration>())
}

/// Memory in use, in KiB.
fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What `/proc/PID/stat` says.
struct Stat {
    parent: u32,
    own: Duration,
    /// Of children that have ended.
    ended: Duration,
}

impl Stat {
    fn read(path: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        // The name in parentheses may hold anything, so the fields are counted from its end.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| Some(TICK * fields.get(at)?.parse::<u32>().ok()?);
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            own: ticks(11)? + ticks(12)?,
            ended: ticks(13)? + ticks(14)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_turns_together() {
        let mut sum = Sum::default();
        for turn in 0..2_u64 {
            let latencies = Latencies::default();
            (1..=50).for_each(|n| latencies.note(Duration::from_millis(n + 50 * turn)));
            Turn::begin(&Processes::default()).end(&Processes::default(), 50, &latencies, &mut sum);
        }
        let figures = sum.figures("x");
        assert_eq!(figures.count, 100);
        assert_eq!((figures.p50_ms, figures.p99_ms, figures.max_ms), (Some(51.0), Some(99.0), Some(100.0)));
        assert_eq!(figures.server_cpu_ms_per_1000, None);
    }
}
