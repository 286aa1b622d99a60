//! The requests of a run, made before the first is sent. The rule: a plan follows from the seed and a salt alone;
//! another salt gives other prompts, so that no cache knows them.

use std::collections::HashMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::trace::Row;
use super::{Arrivals, Load, Scenario, Tenant, Turns, load::MOST_TURNS};

/// A conversation as planned; most have one turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Its number within its group.
    pub index: usize,
    /// Seconds after the start of the run at which its first turn is due; none in a closed loop.
    pub due_s: Option<f64>,
    /// Who sends it.
    pub tenant: Option<Arc<str>>,
    /// In order.
    pub turns: Vec<Turn>,
}

/// One request of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// What the user says.
    pub prompt: String,
    /// Tokens to generate.
    pub output_tokens: u32,
    /// Chunks after which the client goes away.
    pub abort_after: Option<u32>,
    /// Seconds between the answer before and this turn.
    pub think_s: f64,
    /// Seconds after the start of the run before which it isn't sent, from a trace.
    pub not_before_s: f64,
}

/// Makes one group's plan.
struct Planner<'a> {
    seed: u64,
    load: &'a Load,
    tenants: &'a [Tenant],
    rng: SmallRng,
}

impl Scenario {
    /// The requests of each group, warm-up first.
    pub fn plan(&self, salt: u64) -> Vec<Vec<Planned>> {
        let loads = self.loads();
        let plan = |(number, load): (usize, &Load)| {
            // Groups draw from streams of their own, so that one more group leaves the others' requests alone.
            let mixed = self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(salt);
            let seed = mixed ^ (number as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
            let rng = SmallRng::seed_from_u64(seed);
            Planner { seed: self.seed ^ salt, load, tenants: &self.tenant, rng }.plan()
        };
        loads.iter().enumerate().map(plan).collect()
    }
}

impl Planner<'_> {
    fn plan(mut self) -> Vec<Planned> {
        if let Arrivals::Trace { speed, rows, .. } = &self.load.arrivals {
            let rows = Arc::clone(rows);
            return self.replay(rows.rows(), *speed);
        }
        let total = self.load.warmup + self.load.requests;
        let closed = self.load.arrivals.streams().is_some();
        let mut planned = Vec::new();
        let mut last_s = 0.0;
        for index in 0..total {
            let next_s = self.load.arrivals.next_s(&mut self.rng, last_s, index, total);
            let Some(next_s) = next_s.filter(|at_s| self.load.duration_s.is_none_or(|most| *at_s < most))
            else {
                break;
            };
            last_s = next_s;
            let turns = self.turns();
            planned.push(Planned {
                index,
                due_s: (!closed).then_some(self.load.start_s + next_s),
                tenant: self.tenant(),
                turns,
            });
        }
        planned
    }

    /// The turns of one conversation.
    fn turns(&mut self) -> Vec<Turn> {
        let prefix_group = self.rng.random_range(0..self.load.prefix_groups);
        let count = self.turn_count();
        (0..count)
            .map(|number| {
                let lengths = &self.load.prompt_tokens;
                let length = lengths[self.rng.random_range(0..lengths.len())];
                let [least, most] = self.load.output_tokens;
                let output = self.rng.random_range(least..=most);
                self.turn(number == 0, prefix_group, length, output)
            })
            .collect()
    }

    fn turn(&mut self, first: bool, prefix_group: u32, length: u32, output_tokens: u32) -> Turn {
        let aborts = self.rng.random::<f64>() < self.load.abort_share;
        let [least_s, most_s] = self.load.think_s;
        Turn {
            prompt: self.prompt(length, first.then_some(prefix_group)),
            output_tokens,
            abort_after: aborts.then(|| self.rng.random_range(1..=output_tokens)),
            think_s: if first { 0.0 } else { self.rng.random_range(least_s..=most_s) },
            not_before_s: 0.0,
        }
    }

    fn turn_count(&mut self) -> u32 {
        match self.load.turns {
            Turns::Fixed(turns) => turns,
            Turns::Between([least, most]) => self.rng.random_range(least..=most),
            Turns::Geometric { mean, most } => {
                let mut turns = 1;
                while turns < most && self.rng.random::<f64>() >= 1.0 / mean {
                    turns += 1;
                }
                turns
            }
        }
    }

    /// The group's tenant, or one drawn by weight.
    fn tenant(&mut self) -> Option<Arc<str>> {
        if let Some(tenant) = &self.load.tenant {
            return Some(Arc::from(tenant.as_str()));
        }
        let total: f64 = self.tenants.iter().map(|tenant| tenant.weight).sum();
        let mut left = self.rng.random::<f64>() * total;
        let drawn = self.tenants.iter().find(|tenant| {
            left -= tenant.weight;
            left < 0.0
        });
        drawn.or(self.tenants.last()).map(|tenant| Arc::from(tenant.name.as_str()))
    }

    /// A recorded trace; rows of one session are the turns of one conversation.
    fn replay(&mut self, rows: &[Row], speed: f64) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::new();
        let mut sessions: HashMap<Arc<str>, usize> = HashMap::new();
        let total = self.load.warmup + self.load.requests;
        for row in rows {
            let at_s = row.at_s / speed;
            if self.load.duration_s.is_some_and(|most| at_s >= most) {
                break;
            }
            let known = row.session.as_ref().and_then(|session| sessions.get(session)).copied();
            let known = known.filter(|at| planned[*at].turns.len() < MOST_TURNS as usize);
            if known.is_none() && planned.len() == total {
                continue;
            }
            let prefix_group = self.rng.random_range(0..self.load.prefix_groups);
            let mut turn = self.turn(known.is_none(), prefix_group, row.prompt_tokens, row.output_tokens);
            turn.not_before_s = self.load.start_s + at_s;
            if let Some(at) = known {
                planned[at].turns.push(turn);
                continue;
            }
            if let Some(session) = &row.session {
                sessions.insert(Arc::clone(session), planned.len());
            }
            let due_s = Some(self.load.start_s + at_s);
            let tenant = row.tenant.clone().or_else(|| self.tenant());
            planned.push(Planned { index: planned.len(), due_s, tenant, turns: vec![turn] });
        }
        planned
    }

    /// Words, behind the beginning that a prefix group shares and the instruction that a structure needs.
    fn prompt(&mut self, tokens: u32, prefix_group: Option<u32>) -> String {
        let mut text = String::new();
        if let Some(instruction) =
            self.load.structured.as_ref().and_then(|asked| asked.instruction.as_deref())
        {
            text.push_str(instruction);
        }
        if let Some(group) = prefix_group {
            let mut shared = SmallRng::seed_from_u64(self.seed ^ (u64::from(group) << 32));
            for _ in 0..self.load.shared_prefix_tokens {
                push_word(&mut text, &mut shared);
            }
        }
        for _ in 0..tokens {
            push_word(&mut text, &mut self.rng);
        }
        text
    }
}

/// Words that are one token each, with their space, in the usual vocabularies.
const WORDS: [&str; 64] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "number", "night", "point", "home", "water", "room",
    "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job",
    "word", "business", "issue", "side", "kind", "head", "house", "service", "friend", "father", "power",
    "hour", "game", "line", "end", "member", "law", "car",
];

fn push_word(text: &mut String, rng: &mut SmallRng) {
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(WORDS[rng.random_range(0..WORDS.len())]);
}
