//! Whether tiles may be used. The rule: four have to say yes, in this order: the processor has them, their sizes are
//! those the code is written for, the system saves them, and it has granted them to this process.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use super::Absent;

/// Bits of `edx` of leaf 7 (Intel SDM, `CPUID`).
const AMX_BF16: u32 = 1 << 22;
const AMX_TILE: u32 = 1 << 24;
const AMX_INT8: u32 = 1 << 25;

/// Bits of the extended control register for tile configuration and tile data.
const TILE_STATE: u64 = 0b11 << 17;

/// Numbers of Linux: the call `arch_prctl`, its requests, and the state that needs asking.
#[cfg(target_os = "linux")]
mod linux {
    pub(super) const ARCH_PRCTL: i64 = 158;
    pub(super) const ARCH_GET_XCOMP_PERM: i64 = 0x1022;
    pub(super) const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    pub(super) const XFEATURE_XTILEDATA: u64 = 18;
}

/// Asks once a process; a grant holds for all its threads.
pub(crate) fn ask() -> Result<(), Absent> {
    static ANSWER: OnceLock<Result<(), Absent>> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        processor()?;
        sizes()?;
        saved_by_the_system()?;
        grant()
    })
}

/// Whether tiles multiply bfloat16 too.
pub(crate) fn has_bf16() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| features() & AMX_BF16 != 0)
}

fn features() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 0x1e { 0 } else { __cpuid_count(7, 0).edx }
}

fn processor() -> Result<(), Absent> {
    let wanted = AMX_TILE | AMX_INT8;
    if features() & wanted == wanted { Ok(()) } else { Err(Absent::Processor) }
}

/// Palette 1 in leaf 1d, the multiplier in leaf 1e.
fn sizes() -> Result<(), Absent> {
    use std::arch::x86_64::__cpuid_count;
    let (most, palette, multiplier) =
        (__cpuid_count(0x1d, 0), __cpuid_count(0x1d, 1), __cpuid_count(0x1e, 0));
    let tile_bytes = palette.eax >> 16;
    let (row_bytes, tiles) = (palette.ebx & 0xffff, palette.ebx >> 16);
    let (most_k, most_n) = (multiplier.ebx & 0xff, (multiplier.ebx >> 8) & 0xffff);
    let found = [tile_bytes, row_bytes, tiles, palette.ecx & 0xffff, most_k, most_n];
    if most.eax >= 1 && found == [1024, 64, 8, 16, 16, 64] { Ok(()) } else { Err(Absent::Sizes(found)) }
}

fn saved_by_the_system() -> Result<(), Absent> {
    use std::arch::x86_64::__cpuid;
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return Err(Absent::NotSaved);
    }
    let (low, high): (u32, u32);
    // SAFETY: the bit above says that the instruction exists for programs; it only reads.
    unsafe {
        std::arch::asm!(
            "xgetbv",
            in("ecx") 0, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags),
        );
    }
    let enabled = u64::from(high) << 32 | u64::from(low);
    if enabled & TILE_STATE == TILE_STATE { Ok(()) } else { Err(Absent::NotSaved) }
}

#[cfg(target_os = "linux")]
fn grant() -> Result<(), Absent> {
    use linux::{ARCH_GET_XCOMP_PERM, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA};
    let mut granted = 0_u64;
    // SAFETY: this request reads a number and changes nothing but what the process may use.
    let asked = unsafe { arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
    if asked != 0 {
        return Err(Absent::Refused(-asked));
    }
    // SAFETY: this request writes one 64-bit number, to where the pointer points.
    let read = unsafe { arch_prctl(ARCH_GET_XCOMP_PERM, (&raw mut granted).expose_provenance() as u64) };
    if read == 0 && granted >> XFEATURE_XTILEDATA & 1 == 1 { Ok(()) } else { Err(Absent::Refused(-read)) }
}

#[cfg(not(target_os = "linux"))]
fn grant() -> Result<(), Absent> {
    Err(Absent::System)
}

/// The call `arch_prctl(request, argument)`: zero, or an error number negated.
///
/// # Safety
/// The argument is what the request wants; if that is a pointer, what it points to may be written.
#[cfg(target_os = "linux")]
unsafe fn arch_prctl(request: i64, argument: u64) -> i64 {
    let mut result = linux::ARCH_PRCTL;
    // SAFETY: the call changes only the registers named here; the rest is the caller's duty.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") request,
            in("rsi") argument,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_absent_where_the_processor_does_not_name_them() {
        let named = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let named = named.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        if !named.split_whitespace().any(|flag| flag == "amx_tile") {
            assert_eq!(ask(), Err(Absent::Processor));
        }
        assert_eq!(ask(), ask(), "the answer is kept");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_call_reads_what_the_process_may_use() {
        let mut granted = 0_u64;
        // SAFETY: this request writes one 64-bit number, to where the pointer points.
        let read =
            unsafe { arch_prctl(linux::ARCH_GET_XCOMP_PERM, (&raw mut granted).expose_provenance() as u64) };
        // Systems older than the request refuse it as an invalid one (22).
        assert!(read == 0 && granted & 0b11 == 0b11 || read == -22, "{read}: {granted:b}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_request_that_does_not_exist_is_refused() {
        // SAFETY: there is no such request, so that nothing is read or written.
        assert!(unsafe { arch_prctl(0x7fff_0000, 0) } < 0);
    }
}
