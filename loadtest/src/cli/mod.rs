//! The command line. The rule: targets, servers and models are settled before the first request is measured.

pub(crate) mod out;
pub(crate) mod rounds;
pub(crate) mod sweep;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use pons_loadtest::client::{Target, Tls, first_model};
use pons_loadtest::scenario::Scenario;
use pons_loadtest::server::{Alone, Fleet, Spec};

/// What every measuring command takes.
#[derive(Args)]
pub(crate) struct Options {
    /// Scenario, a TOML file
    pub(crate) scenario: PathBuf,
    /// Servers: NAME=URL, or a URL alone
    #[arg(long, required = true, value_name = "NAME=URL")]
    pub(crate) target: Vec<String>,
    /// Model to ask for: NAME=MODEL for one target, or MODEL for all; the first that a server lists without it
    #[arg(long, value_name = "[NAME=]MODEL")]
    pub(crate) model: Vec<String>,
    /// Key to send
    #[arg(long, env = "PONS_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// Header of each request, for one target or all; it does not stand in the record
    #[arg(long, value_name = "[NAME=]HEADER:VALUE")]
    header: Vec<String>,
    /// Command that starts a target's server, run by `sh -c` and ended with the run; it stands in the record, so give
    /// it secrets by environment
    #[arg(long, value_name = "[NAME=]COMMAND")]
    pub(crate) start: Vec<String>,
    /// Most seconds from the start of a server to its first answer
    #[arg(long, default_value_t = 120)]
    pub(crate) start_wait_s: u64,
    /// Keep the other servers still while one is measured; each must have its --start
    #[arg(long, value_name = "HOW", num_args = 0..=1, default_missing_value = "pause", require_equals = true)]
    pub(crate) alone: Option<Alone>,
    /// Streams of a closed loop, several for several levels; the scenario's own without it
    #[arg(long, value_delimiter = ',')]
    pub(crate) streams: Vec<usize>,
    /// Measured requests of each round; the scenario's own without it
    #[arg(long)]
    pub(crate) requests: Option<usize>,
    /// Rounds at each level; 1 for `run` and 5 for `compare` without it
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Folder for the record, its page and the logs of servers
    #[arg(long, default_value = "loadtest-results")]
    pub(crate) out: PathBuf,
    /// Write every measured request as a row of requests.csv beside the record
    #[arg(long)]
    pub(crate) raw: bool,
    /// Certificates of a private authority to believe, a PEM file, for targets that begin with https://
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// No live view on the terminal
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Everything that a command needs to measure.
pub(crate) struct Ready {
    pub(crate) scenario: Scenario,
    pub(crate) targets: Vec<Target>,
    pub(crate) fleet: Fleet,
    pub(crate) tls: Tls,
}

impl Options {
    /// Reads the scenario, starts servers and asks for their models.
    pub(crate) async fn ready(&self) -> anyhow::Result<Ready> {
        let scenario = self.scenario()?;
        let named = self.named()?;
        let tls = Tls::new(self.ca.as_deref())?;
        std::fs::create_dir_all(&self.out)
            .with_context(|| format!("{} can't be made", self.out.display()))?;
        let specs = self.specs(&named)?;
        let mut fleet = Fleet::start(specs, self.alone).await?;
        let mut targets = Vec::new();
        for (name, url) in named {
            let own = format!("{name}=");
            let own = self.model.iter().find_map(|model| model.strip_prefix(&own));
            let any = || self.model.iter().map(String::as_str).find(|model| !model.contains('='));
            let model = match own.or_else(any) {
                Some(model) => model.to_owned(),
                None => {
                    fleet.turn(&name).await?;
                    first_model(&url, self.key.as_deref(), &tls).await?
                }
            };
            let headers = self.headers(&name)?;
            targets.push(Target { name, url, model, key: self.key.clone(), headers });
        }
        Ok(Ready { scenario, targets, fleet, tls })
    }

    fn scenario(&self) -> anyhow::Result<Scenario> {
        let shown = self.scenario.display();
        let mut scenario = Scenario::read(&self.scenario).with_context(|| format!("scenario {shown}"))?;
        scenario.requests = self.requests.unwrap_or(scenario.requests);
        scenario.check()?;
        Ok(scenario)
    }

    /// Names and addresses of the targets.
    fn named(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut named: Vec<(String, String)> = Vec::new();
        for (index, target) in self.target.iter().enumerate() {
            // An equals sign in a URL alone can only follow its query.
            let pair = target.split_once('=').filter(|(name, _)| !name.contains(':'));
            let (name, url) = pair
                .map_or((format!("target{index}"), target.as_str()), |(name, url)| (name.to_owned(), url));
            if !url.starts_with("http://") && !url.starts_with("https://") {
                bail!("--target is {target}; give an address that starts with http:// or https://");
            }
            if named.iter().any(|(other, _)| *other == name) {
                bail!("--target names {name} twice; give each a name of its own");
            }
            named.push((name, url.trim_end_matches('/').to_owned()));
        }
        Ok(named)
    }

    /// Further headers of one target's requests.
    fn headers(&self, target: &str) -> anyhow::Result<Vec<(String, String)>> {
        let mut headers = Vec::new();
        for given in &self.header {
            let Some((before, value)) = given.split_once(':') else {
                bail!("--header is {given}; write HEADER:VALUE, or NAME=HEADER:VALUE for one target");
            };
            // A header's name has no equals sign.
            let (of, name) = before.split_once('=').map_or((None, before), |(of, name)| (Some(of), name));
            http::HeaderName::try_from(name).with_context(|| format!("--header {given}"))?;
            http::HeaderValue::try_from(value.trim()).with_context(|| format!("--header {given}"))?;
            if of.is_none_or(|of| of == target) {
                headers.push((name.to_owned(), value.trim().to_owned()));
            }
        }
        Ok(headers)
    }

    /// How the servers of the targets are started.
    fn specs(&self, named: &[(String, String)]) -> anyhow::Result<Vec<Spec>> {
        let mut specs: Vec<Spec> = Vec::new();
        for start in &self.start {
            let found = named
                .iter()
                .find_map(|(name, url)| Some((name, url, start.strip_prefix(&format!("{name}="))?)));
            let (name, url, command) = match (found, named) {
                (Some(found), _) => found,
                (None, [(name, url)]) => (name, url, start.as_str()),
                _ => bail!("--start is {start}; with several targets begin it with the name of one and ="),
            };
            if specs.iter().any(|spec| spec.name == *name) {
                bail!("--start is given twice for {name}; join the commands with &&");
            }
            specs.push(Spec {
                name: name.clone(),
                command: command.to_owned(),
                url: url.clone(),
                log: self.out.join(format!("{}.log", file_name(name))),
                wait_s: self.start_wait_s,
            });
        }
        let without = named.iter().find(|(name, _)| !specs.iter().any(|spec| spec.name == *name));
        if let (Some(_), Some((name, _))) = (self.alone, without) {
            bail!(
                "--alone is set and {name} has no --start; what the harness didn't start it can't keep still"
            );
        }
        Ok(specs)
    }
}

/// A target's name as a file may be called.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect()
}
