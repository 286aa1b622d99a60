//! Packed matrices as bytes that can be kept between runs of the program. The rule: sizes follow from the shape and
//! the stored form alone, so that whoever keeps the bytes need not describe them, and can't describe them wrongly.

use super::matrix::{Matrix, STRIP, Store};
use super::quant::{Form, GROUP, LANES, NEST, NEST_WORDS, Quants, Scales, Scaling};
use super::rows::Precision;
use super::stored::{Section, SectionError, Stored};

/// Raised whenever weights are packed otherwise than before; bytes of another version mean something else.
pub const LAYOUT_VERSION: u32 = 1;

/// How the weights of a matrix are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Single precision.
    F32,
    /// Brain floats.
    Bf16,
    /// Half precision.
    F16,
    /// In blocks of whole numbers with scales.
    Quantised(Form),
}

impl Kind {
    /// Bytes of each section of a matrix, or `None` where that many can't exist.
    #[must_use]
    pub fn section_bytes(self, rows: usize, cols: usize) -> Option<Vec<usize>> {
        let strips = rows.div_ceil(STRIP);
        let dense = |each: usize| strips.checked_mul(STRIP)?.checked_mul(cols)?.checked_mul(each);
        Some(match self {
            Kind::F32 => vec![dense(4)?],
            Kind::Bf16 | Kind::F16 => vec![dense(2)?],
            Kind::Quantised(form) => {
                let halves = strips.checked_mul(STRIP / LANES)?;
                let groups = halves.checked_mul(cols.div_ceil(GROUP))?;
                let nests = halves.checked_mul(cols.div_ceil(GROUP * NEST))?;
                let mut bytes = vec![groups.checked_mul(form.width.unit_bytes())?];
                bytes.extend(match form.scaling {
                    Scaling::Centred { .. } => vec![groups.checked_mul(LANES * 2)?],
                    Scaling::Affine => vec![groups.checked_mul(2 * LANES * 2)?],
                    Scaling::NestedAffine => {
                        vec![nests.checked_mul(2 * LANES * 2)?, nests.checked_mul(NEST_WORDS * LANES * 4)?]
                    }
                    Scaling::NestedCentred { .. } => {
                        vec![nests.checked_mul(LANES * 2)?, nests.checked_mul(2 * NEST * LANES)?]
                    }
                });
                bytes
            }
        })
    }
}

impl Matrix {
    /// How the weights are stored.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match &self.store {
            Store::F32(_) => Kind::F32,
            Store::Bf16(_) => Kind::Bf16,
            Store::F16(_) => Kind::F16,
            Store::Quants(quants) => Kind::Quantised(quants.form()),
        }
    }

    /// The packed weights as bytes in this machine's order, as many sections as [`Kind::section_bytes`] says.
    #[must_use]
    pub fn sections(&self) -> Vec<&[u8]> {
        match &self.store {
            Store::F32(data) => vec![data.as_bytes()],
            Store::Bf16(data) | Store::F16(data) => vec![data.as_bytes()],
            Store::Quants(quants) => {
                let mut sections = vec![quants.digits.as_bytes()];
                match &quants.scales {
                    Scales::Centred { d, .. } => sections.push(d.as_bytes()),
                    Scales::Affine { dm } => sections.push(dm.as_bytes()),
                    Scales::NestedAffine { dm, st } => sections.extend([dm.as_bytes(), st.as_bytes()]),
                    Scales::NestedCentred { d, s, .. } => sections.extend([d.as_bytes(), s.as_bytes()]),
                }
                sections
            }
        }
    }

    /// A matrix of the bytes that [`Matrix::sections`] gave for one of the same shape and kind.
    ///
    /// # Errors
    /// Sections of another number or size, outside their region, or off a cache line. What the bytes say is not
    /// looked at: all of them are weights.
    pub fn from_sections(
        rows: usize,
        cols: usize,
        kind: Kind,
        sections: &[Section],
    ) -> Result<Matrix, SectionError> {
        let size =
            SectionError::Size { given: sections.iter().map(|section| section.bytes.len()).sum(), wanted: 0 };
        let bytes = kind.section_bytes(rows, cols).filter(|_| rows > 0 && cols > 0).ok_or(size)?;
        if bytes.len() != sections.len() {
            return Err(SectionError::Count { given: sections.len(), wanted: bytes.len() });
        }
        let parts = Parts { sections, bytes: &bytes };
        let store = match kind {
            Kind::F32 => Store::F32(parts.stored(0)?),
            Kind::Bf16 => Store::Bf16(parts.stored(0)?),
            Kind::F16 => Store::F16(parts.stored(0)?),
            Kind::Quantised(Form { width, scaling }) => {
                let scales = match scaling {
                    Scaling::Centred { zero } => Scales::Centred { d: parts.stored(1)?, zero },
                    Scaling::Affine => Scales::Affine { dm: parts.stored(1)? },
                    Scaling::NestedAffine => {
                        Scales::NestedAffine { dm: parts.stored(1)?, st: parts.stored(2)? }
                    }
                    Scaling::NestedCentred { zero } => {
                        Scales::NestedCentred { d: parts.stored(1)?, s: parts.stored(2)?, zero }
                    }
                };
                Store::Quants(Quants { width, digits: parts.stored(0)?, scales })
            }
        };
        Ok(Matrix { rows, cols, store, precision: Precision::default() })
    }
}

/// The sections of one matrix and what each has to hold.
struct Parts<'a> {
    sections: &'a [Section],
    bytes: &'a [usize],
}

impl Parts<'_> {
    fn stored<T: bytemuck::Pod>(&self, index: usize) -> Result<Stored<T>, SectionError> {
        Stored::shared(self.sections[index].clone(), self.bytes[index] / size_of::<T>())
    }
}

#[cfg(test)]
mod tests;
