//! Large pages for large buffers. The rule: it is advice before the first touch and nothing more; a system that has
//! none, or does not want to give them, changes no result.
#![allow(unsafe_code)]

/// The size and alignment of a large page.
const LARGE_BYTES: usize = 2 << 20;

/// Asks for large pages where whole ones fit into the buffer, so that walking it takes few address translations.
pub(crate) fn ask_for_large<T>(buffer: &mut [T]) {
    let bytes = size_of_val(buffer);
    let start: *mut u8 = buffer.as_mut_ptr().cast();
    let skipped = start.align_offset(LARGE_BYTES);
    if skipped >= bytes {
        return;
    }
    let whole = (bytes - skipped) / LARGE_BYTES * LARGE_BYTES;
    if whole == 0 {
        return;
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        // SAFETY: the range is inside the buffer, and the advice changes neither its content nor its rights.
        let _ = unsafe { madvise(start.add(skipped).cast(), whole, Advice::LinuxHugepage) };
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Whether the mapping that holds an address was advised to use large pages.
    fn advised(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("a process sees its own mappings");
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split_whitespace().next().and_then(|first| first.split_once('-'));
            if let Some((from, to)) = range
                && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
            {
                inside = (from..to).contains(&address);
            }
            if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.split_whitespace().any(|flag| flag == "hg");
            }
        }
        false
    }

    #[test]
    fn a_large_buffer_is_advised_and_stays_zero() {
        let mut buffer = vec![0_u8; 5 * LARGE_BYTES];
        ask_for_large(&mut buffer);
        assert!(buffer.iter().all(|&byte| byte == 0));
        // A kernel without large pages has no such flag.
        if std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
            assert!(advised(buffer.as_ptr() as usize + 2 * LARGE_BYTES));
        }
    }

    #[test]
    fn a_buffer_without_a_whole_large_page_is_left_alone() {
        ask_for_large::<u32>(&mut []);
        ask_for_large(&mut [1_u16; 100]);
    }
}
