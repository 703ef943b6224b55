//! The node's clock: it runs through suspend and never steps back.
//!
//! `std::time::Instant` stands still while a machine is suspended, so a lease would outlive its owner's sleep.
#![allow(unsafe_code)] // One call of clock_gettime; std has no CLOCK_BOOTTIME.

use std::time::Duration;

/// Time since boot, suspend included (`CLOCK_BOOTTIME`; `CLOCK_MONOTONIC` where there is none).
pub fn now() -> Duration {
    #[cfg(target_os = "linux")]
    const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live timespec; the clock exists on every supported kernel.
    let answer = unsafe { libc::clock_gettime(CLOCK, &raw mut time) };
    assert_eq!(answer, 0, "the kernel has no monotonic clock");
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_does_not_step_back() {
        let first = super::now();
        assert!(super::now() >= first && !first.is_zero());
    }
}
