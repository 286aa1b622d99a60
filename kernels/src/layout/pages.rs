//! A large buffer straight from the system. The rule: its pages are as large as the system has them, so that a pass
//! over all weights does not spend its time looking up addresses.

use memmap2::{Advice, MmapMut};

/// The size of a large page, where the buffer starts.
const HUGE_BYTES: usize = 2 << 20;

/// Zeroed memory that starts on a large page.
pub struct Pages {
    map: MmapMut,
    start: usize,
    len: usize,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pages({} bytes)", self.len)
    }
}

impl Pages {
    /// `len` zeroed bytes. Pages are taken when they are first written.
    ///
    /// # Errors
    /// The system has no such stretch of addresses.
    pub fn zeroed(len: usize) -> std::io::Result<Pages> {
        let padded = len.checked_add(HUGE_BYTES).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let map = MmapMut::map_anon(padded)?;
        let start = map.as_ptr().align_offset(HUGE_BYTES).min(HUGE_BYTES);
        // A system without large pages refuses; small ones serve as well, only slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::HugePage);
        Ok(Pages { map, start, len })
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        &self.map[self.start..self.start + self.len]
    }
}

impl AsMut<[u8]> for Pages {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroed_writable_and_start_on_a_large_page() {
        for len in [0, 1, HUGE_BYTES + 5] {
            let mut pages = Pages::zeroed(len).unwrap();
            assert_eq!(pages.as_ref().len(), len);
            assert_eq!(pages.as_ref().as_ptr() as usize % HUGE_BYTES, 0);
            assert!(pages.as_ref().iter().all(|&byte| byte == 0));
            pages.as_mut().fill(7);
            assert!(pages.as_ref().iter().all(|&byte| byte == 7));
        }
        assert!(Pages::zeroed(usize::MAX).is_err());
    }
}
