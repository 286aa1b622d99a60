//! Packed weights in memory: their own, or a part of a region that many matrices share. The rule: whoever reads them
//! can't tell which.

use std::ops::{Deref, Range};
use std::sync::Arc;

use bytemuck::Pod;

use super::aligned::{Aligned, LINE_BYTES};
use super::pages::Pages;

/// A part of a region.
#[derive(Clone)]
pub struct Section {
    /// The region.
    pub region: Arc<Pages>,
    /// Which of its bytes.
    pub bytes: Range<usize>,
}

impl std::fmt::Debug for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Section({:?})", self.bytes)
    }
}

/// Why a section can't hold weights.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SectionError {
    /// Another number of sections than the layout has.
    #[error("{given} sections were given for a layout of {wanted}; pack the weights again")]
    Count {
        /// How many there were.
        given: usize,
        /// How many the layout has.
        wanted: usize,
    },
    /// Another size than the layout has, or outside its region.
    #[error("a section of {given} bytes was given for {wanted} bytes of weights; pack the weights again")]
    Size {
        /// Bytes there are.
        given: usize,
        /// Bytes the layout has.
        wanted: usize,
    },
    /// Not on a cache line.
    #[error(
        "a section starts at byte {start} of its region, which is on no cache line; pack the weights again"
    )]
    Alignment {
        /// Where it starts.
        start: usize,
    },
}

/// Weights of one part of a matrix.
pub(crate) enum Stored<T> {
    Own(Aligned<T>),
    Shared(Section),
}

impl<T: Pod> Stored<T> {
    /// A section as `len` elements.
    pub(crate) fn shared(section: Section, len: usize) -> Result<Stored<T>, SectionError> {
        let wanted = len.saturating_mul(size_of::<T>());
        let whole = (*section.region).as_ref();
        let part = whole.get(section.bytes.clone()).unwrap_or(&[]);
        if part.len() != wanted {
            return Err(SectionError::Size { given: part.len(), wanted });
        }
        if part.as_ptr().align_offset(LINE_BYTES) != 0 {
            return Err(SectionError::Alignment { start: section.bytes.start });
        }
        Ok(Stored::Shared(section))
    }

    /// Room to pack weights into.
    ///
    /// # Panics
    /// When they are shared: only what was just made is packed into.
    pub(crate) fn own_mut(&mut self) -> &mut [T] {
        match self {
            Stored::Own(own) => own,
            Stored::Shared(section) => panic!("weights of {section:?} are shared and can't be packed into"),
        }
    }

    /// The weights as bytes in this machine's order.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

impl<T> From<Aligned<T>> for Stored<T> {
    fn from(own: Aligned<T>) -> Stored<T> {
        Stored::Own(own)
    }
}

impl<T: Pod> Deref for Stored<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Stored::Own(own) => own,
            // Checked when it was made; a region that moved or shrank since would panic here, not misread.
            Stored::Shared(section) => {
                bytemuck::cast_slice(&(*section.region).as_ref()[section.bytes.clone()])
            }
        }
    }
}
