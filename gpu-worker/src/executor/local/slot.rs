//! What the executor remembers about a sequence: sampler state and grammar. The rule: a slot is filled by an
//! admission and emptied by a release, and holds nothing that prompt and output would not give again.

use pons_protocol::id::TokenId;

use crate::executor::{NewSequence, RowOutput, SlotId};
use crate::grammar::GrammarMatcher;
use crate::model::sampler::{SamplerState, TokenMask};

/// State of one sequence.
pub(super) struct Slot {
    sampler: SamplerState,
    grammar: Option<GrammarMatcher>,
    /// Why the sequence can't go on; reported with its next row.
    fault: Option<String>,
    generated: u32,
}

impl Slot {
    fn new(sequence: NewSequence, vocab_size: u32) -> Self {
        let sampler = SamplerState::new(
            sequence.sampling,
            sequence.stop.min_tokens,
            sequence.end_tokens,
            &sequence.prompt,
            vocab_size as usize,
        );
        let mut slot = Self { sampler, grammar: sequence.grammar, fault: None, generated: 0 };
        for token in sequence.generated {
            slot.push(token);
        }
        slot
    }

    fn push(&mut self, token: TokenId) {
        self.generated += 1;
        self.sampler.push(token);
        if let Some(grammar) = &mut self.grammar
            && self.fault.is_none()
        {
            self.fault = grammar.advance(token).err();
        }
    }

    pub(super) fn sampler(&self) -> &SamplerState {
        &self.sampler
    }

    /// Output tokens so far, so the output position of the next.
    pub(super) fn generated(&self) -> u32 {
        self.generated
    }

    /// Gives the matcher away for its mask to be computed, if there is one that can go on.
    pub(super) fn lend_grammar(&mut self) -> Option<GrammarMatcher> {
        if self.fault.is_some() { None } else { self.grammar.take() }
    }

    /// Takes back what [`Slot::lend_grammar`] gave, and why no mask came of it if so.
    pub(super) fn return_grammar(&mut self, grammar: GrammarMatcher, fault: Option<String>) {
        self.grammar = Some(grammar);
        self.fault = fault;
    }

    /// Notes that the matcher will not come back.
    pub(super) fn lose_grammar(&mut self) {
        self.fault = Some("the thread that computes grammar masks ended; send the request again".to_owned());
    }

    /// What the grammar allows, or why the sequence can't go on.
    pub(super) fn mask(&self) -> Result<Option<TokenMask<'_>>, String> {
        match &self.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(self.grammar.as_ref().map(|grammar| TokenMask(grammar.mask()))),
        }
    }

    /// Takes over the row's token.
    pub(super) fn finish(&mut self, row: &mut RowOutput) {
        let Some(token) = row.token else { return };
        self.push(token);
        row.grammar_end = self.grammar.as_ref().is_some_and(GrammarMatcher::is_ended);
        if let Some(fault) = &self.fault {
            row.token = None;
            row.fault.get_or_insert_with(|| fault.clone());
        }
    }
}

/// All slots.
pub(super) struct Slots {
    slots: Vec<Option<Slot>>,
    vocab_size: u32,
}

impl Slots {
    pub(super) fn new(count: u32, vocab_size: u32) -> Self {
        Self { slots: (0..count).map(|_| None).collect(), vocab_size }
    }

    /// Whether a slot holds a sequence; `None` if there is no such slot.
    pub(super) fn is_live(&self, id: SlotId) -> Option<bool> {
        self.slots.get(id as usize).map(Option::is_some)
    }

    /// State of a live slot, if it is one.
    pub(super) fn find(&self, id: SlotId) -> Option<&Slot> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub(super) fn release(&mut self, id: SlotId) {
        self.slots[id as usize] = None;
    }

    pub(super) fn admit(&mut self, sequence: NewSequence) {
        let id = sequence.slot as usize;
        self.slots[id] = Some(Slot::new(sequence, self.vocab_size));
    }

    pub(super) fn get(&self, id: SlotId) -> &Slot {
        self.find(id).expect("the plan was checked to name live slots only")
    }

    pub(super) fn get_mut(&mut self, id: SlotId) -> &mut Slot {
        self.slots[id as usize].as_mut().expect("the plan was checked to name live slots only")
    }

    /// How many there may be.
    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }
}
