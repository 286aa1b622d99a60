//! One criterion benchmark file as a whole: its cases, its table, its record. The rule: a case names a rival of the
//! same run or a limit of the machine, and its number in the table is the median of samples that are all recorded.
//!
//! `cargo bench` times; without `--bench` among the arguments, as under `cargo test`, each case runs once on what
//! [`Suite::is_small`] asks for, and nothing is timed.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use criterion::{Bencher, Criterion};
use serde::{Deserialize, Serialize};

use crate::limits::{Caches, Effort, Limits};
use crate::machine::{self, Machine};

/// The environment variable that names the file for the record.
pub const RECORD_VARIABLE: &str = "PONS_BENCH_RECORD";

/// Samples of each case.
const SAMPLES: usize = 30;
/// Criterion keeps longer names apart by cutting them; ours must be found again.
const MOST_NAME_BYTES: usize = 60;

/// What is timed, and beside what.
#[derive(Clone, Debug, Default)]
pub struct Case {
    group: String,
    name: String,
    bytes: u64,
    operations: u64,
    elements: u64,
    units: Vec<&'static str>,
    rival: Option<String>,
}

impl Case {
    /// A case of a group. Both names become folders.
    pub fn new(group: &str, name: &str) -> Self {
        Self { group: group.to_owned(), name: name.to_owned(), elements: 1, ..Self::default() }
    }

    /// It can't be done without reading so many bytes, so the bandwidth of the level that holds them is a limit.
    pub fn reads(self, bytes: usize) -> Self {
        Self { bytes: bytes as u64, ..self }
    }

    /// It can't be done without so many operations; the fastest of these arithmetic units is a limit.
    pub fn computes(self, operations: u64, units: &[&'static str]) -> Self {
        Self { operations, units: units.to_vec(), ..self }
    }

    /// It handles so many things at once; the table shows the time of one.
    pub fn handles(self, elements: usize) -> Self {
        Self { elements: elements.max(1) as u64, ..self }
    }

    /// The case of the same group that it is compared with.
    pub fn beside(self, rival: &str) -> Self {
        Self { rival: Some(rival.to_owned()), ..self }
    }
}

/// What came of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Group and name.
    pub case: String,
    /// Nanoseconds of one run: the median of the samples.
    pub median_ns: f64,
    /// Things handled in one run.
    pub elements: u64,
    /// Bytes that one run has to read.
    pub bytes: u64,
    /// Operations that one run has to do.
    pub operations: u64,
    /// The limit that allows the least, if any is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<OfLimit>,
    /// The rival, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rival: Option<OfRival>,
    /// Nanoseconds of one run in each sample.
    pub samples_ns: Vec<f64>,
}

/// How near a case came to what the machine can do.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct OfLimit {
    /// Name of the limit.
    pub name: String,
    /// Nanoseconds that the limit asks for.
    pub least_ns: f64,
    /// Share of the limit that was reached.
    pub fraction: f64,
}

/// How a case did beside its rival.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct OfRival {
    /// Name of the rival's case.
    pub name: String,
    /// The rival's median by our median: above 1 we are faster.
    pub times_as_fast: f64,
}

/// Everything about one run.
#[derive(Debug, Serialize)]
struct Record<'a> {
    benchmark: &'a str,
    machine: &'a Machine,
    load_average_after: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<&'a Limits>,
    cases: &'a [Outcome],
}

/// A benchmark file.
pub struct Suite {
    name: &'static str,
    criterion: Criterion,
    folder: PathBuf,
    small: bool,
    machine: Machine,
    limits: Option<Limits>,
    cases: Vec<Case>,
}

impl Suite {
    /// Reads the command line.
    ///
    /// # Errors
    /// When this executable has no path to put results beside.
    pub fn start(name: &'static str) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("this executable has no path")?;
        // TARGET/PROFILE/deps/NAME
        let target = own.ancestors().nth(3).context("this executable is in no target folder")?;
        let folder = target.join("criterion").join(name);
        let arguments: Vec<String> = std::env::args().collect();
        let known = without_foreign(&arguments);
        if known.len() < arguments.len() {
            // Criterion reads the command line by itself and ends at what it doesn't know.
            let error = std::process::Command::new(&own).args(&known[1..]).exec();
            return Err(error).context("can't start this executable again");
        }
        let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
        let criterion = Criterion::default()
            .sample_size(SAMPLES)
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_millis(1200))
            .without_plots()
            .output_directory(&folder)
            .configure_from_args();
        let small = !has("--bench") || has("--test") || has("--list");
        Ok(Self { name, criterion, folder, small, machine: Machine::now(), limits: None, cases: Vec::new() })
    }

    /// Measures the limits of the machine with so many threads, for cases that name one.
    pub fn with_limits(mut self, threads: usize) -> Self {
        self.limits = (!self.small).then(|| Limits::measure(threads, Effort::BRIEF));
        self
    }

    /// Whether each case is only to show that it works.
    pub fn is_small(&self) -> bool {
        self.small
    }

    /// Times a case.
    pub fn time(&mut self, case: Case, work: impl FnMut(&mut Bencher<'_>)) {
        let fits = |name: &str| name.len() <= MOST_NAME_BYTES && name.bytes().all(is_plain);
        assert!(fits(&case.group) && fits(&case.name), "{case:?} has a name that is no folder's name");
        let mut group = self.criterion.benchmark_group(case.group.as_str());
        group.bench_function(case.name.as_str(), work);
        group.finish();
        self.cases.push(case);
    }

    /// Prints the table and writes the record, if one is asked for.
    ///
    /// # Errors
    /// When the results can't be read or the record can't be written.
    pub fn finish(self) -> anyhow::Result<()> {
        if self.small {
            return Ok(());
        }
        let mut outcomes = Vec::new();
        for case in &self.cases {
            // A filter on the command line may have left it out.
            if let Some(samples) = samples(&self.folder, case, &self.machine)? {
                outcomes.push(outcome(case, samples, self.limits.as_ref()));
            }
        }
        for at in 0..outcomes.len() {
            outcomes[at].rival = rival(&self.cases, &outcomes, at);
        }
        print(&table(&outcomes))?;
        let Some(path) = std::env::var_os(RECORD_VARIABLE).map(PathBuf::from) else { return Ok(()) };
        if outcomes.len() < self.cases.len() {
            bail!("{} of {} cases were run; a record needs all", outcomes.len(), self.cases.len());
        }
        let record = Record {
            benchmark: self.name,
            machine: &self.machine,
            load_average_after: machine::load_average(),
            limits: self.limits.as_ref(),
            cases: &outcomes,
        };
        machine::write_record(&path, &record)
    }
}

/// The arguments without those that Rust's own test harness takes and criterion doesn't: `cargo test` gives the same
/// to both.
fn without_foreign(arguments: &[String]) -> Vec<&String> {
    const WITH_VALUE: [&str; 4] = ["--test-threads", "--skip", "--shuffle-seed", "-Z"];
    const ALONE: [&str; 3] = ["--shuffle", "--report-time", "--ensure-time"];
    let mut rest = arguments.iter();
    let mut kept = Vec::new();
    while let Some(argument) = rest.next() {
        let name = argument.split('=').next().unwrap_or(argument);
        if WITH_VALUE.contains(&argument.as_str()) {
            rest.next();
        } else if !WITH_VALUE.contains(&name) && !ALONE.contains(&name) {
            kept.push(argument);
        }
    }
    kept
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// What criterion keeps of each case.
#[derive(Deserialize)]
struct Samples {
    iters: Vec<f64>,
    times: Vec<f64>,
}

/// Nanoseconds of one run in each sample of this run; none if the case was not run.
fn samples(folder: &Path, case: &Case, machine: &Machine) -> anyhow::Result<Option<Vec<f64>>> {
    let path = folder.join(&case.group).join(&case.name).join("new/sample.json");
    let Ok(about) = path.metadata() else { return Ok(None) };
    // One of an earlier run says nothing about this one.
    if about.modified().is_ok_and(|written| written < machine.begun) {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    let samples: Samples = serde_json::from_str(&text)
        .with_context(|| format!("{} holds no samples as criterion writes them", path.display()))?;
    Ok(Some(samples.times.iter().zip(&samples.iters).map(|(time, runs)| time / runs).collect()))
}

fn outcome(case: &Case, samples_ns: Vec<f64>, limits: Option<&Limits>) -> Outcome {
    let (median_ns, caches) = (median(&samples_ns), Caches::of_this_machine());
    let least = limits.and_then(|limits| limits.least_ns(caches, case.bytes, case.operations, &case.units));
    let limit = least.map(|(name, least_ns)| OfLimit {
        name: name.to_owned(),
        least_ns,
        fraction: least_ns / median_ns,
    });
    Outcome {
        case: format!("{}/{}", case.group, case.name),
        median_ns,
        elements: case.elements,
        bytes: case.bytes,
        operations: case.operations,
        limit,
        rival: None,
        samples_ns,
    }
}

fn rival(cases: &[Case], outcomes: &[Outcome], at: usize) -> Option<OfRival> {
    let own = &outcomes[at];
    let case = cases.iter().find(|case| own.case == format!("{}/{}", case.group, case.name))?;
    let name = format!("{}/{}", case.group, case.rival.as_ref()?);
    let rival = outcomes.iter().find(|outcome| outcome.case == name)?;
    Some(OfRival { name, times_as_fast: rival.median_ns / own.median_ns })
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}

/// One line a case.
fn table(outcomes: &[Outcome]) -> String {
    let mut lines = vec![format!(
        "{:<58}{:>14}{:>12}{:>10}{:>10}  {:<24}{}",
        "case", "median us", "ns each", "GB/s", "Gop/s", "of limit", "beside rival"
    )];
    for outcome in outcomes {
        let rate = |work: u64| {
            if work == 0 { "-".to_owned() } else { format!("{:.1}", work as f64 / outcome.median_ns) }
        };
        let limit =
            outcome.limit.as_ref().map(|limit| format!("{:.0} % of {}", limit.fraction * 100.0, limit.name));
        let rival = outcome
            .rival
            .as_ref()
            .map(|rival| format!("{} x as fast as {}", short(rival.times_as_fast), rival.name));
        lines.push(format!(
            "{:<58}{:>14.3}{:>12.1}{:>10}{:>10}  {:<24}{}",
            outcome.case,
            outcome.median_ns / 1e3,
            outcome.median_ns / outcome.elements as f64,
            rate(outcome.bytes),
            rate(outcome.operations),
            limit.unwrap_or_else(|| "-".to_owned()),
            rival.unwrap_or_else(|| "-".to_owned()),
        ));
    }
    lines.join("\n") + "\n"
}

/// A ratio with at least two digits that say something.
fn short(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}

fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    std::io::stdout().lock().write_all(text.as_bytes()).context("can't write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limit;

    fn limits() -> Limits {
        let limit = Limit {
            name: "f32_fma",
            unit: "Gop/s",
            best: Some(50.0),
            not_measured: None,
            samples: Vec::new(),
        };
        Limits { threads: 2, limits: vec![limit] }
    }

    #[test]
    fn arguments_of_the_other_harness_are_left_out_with_their_values() {
        let given = [
            "x",
            "--skip",
            "a",
            "--test-threads=1",
            "--nocapture",
            "--test-threads",
            "2",
            "wire",
            "--shuffle",
        ];
        let given = given.map(str::to_owned);
        assert_eq!(without_foreign(&given), ["x", "--nocapture", "wire"]);
    }

    #[test]
    fn medians_ratios_and_shares_stand_in_the_table() {
        let cases = [
            Case::new("g", "ours").computes(7500, &["f32_fma"]).handles(10).beside("theirs"),
            Case::new("g", "theirs"),
        ];
        let mut outcomes = vec![
            outcome(&cases[0], vec![300.0, 200.0, 1000.0], Some(&limits())),
            outcome(&cases[1], vec![600.0, 300.0], None),
        ];
        outcomes[0].rival = rival(&cases, &outcomes, 0);
        assert_eq!(outcomes[0].rival, Some(OfRival { name: "g/theirs".to_owned(), times_as_fast: 1.5 }));
        assert_eq!(rival(&cases, &outcomes, 1), None);
        let table = table(&outcomes);
        let cells: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(cells[..3], ["g/ours", "0.300", "30.0"]);
        assert!(table.contains("50 % of f32_fma"), "{table}");
        assert!(table.contains("1.50 x as fast as g/theirs"), "{table}");
    }
}
