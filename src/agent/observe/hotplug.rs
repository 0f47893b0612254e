//! Listens for kernel events about CPUs, memory and NUMA nodes that are added or removed.
//!
//! The kernel sends its uevents to every network namespace of the initial user namespace, so a pod without
//! host networking receives them, too. Elsewhere, the poll finds such changes.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::unix::AsyncFd;

/// The kernel's own messages; the other group is udev's.
const KERNEL: u32 = 1;

/// The kernel's limit for one message is 2 KiB of variables behind a path.
const BUFFER: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct Hotplug {
    socket: AsyncFd<OwnedFd>,
}

impl Hotplug {
    /// Fails if there is no such socket, or we may not open it.
    pub(super) fn listen() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
        // For 0, the kernel assigns a port number.
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
        #[allow(
            deprecated,
            reason = "its successor is unsafe to call; an OwnedFd is one descriptor while it lives"
        )]
        let socket = AsyncFd::new(socket)?;
        Ok(Self { socket })
    }

    /// Waits until hardware was added or removed, or such an event may have been missed.
    pub(super) async fn next(&mut self) -> io::Result<()> {
        let mut buffer = [0_u8; BUFFER];
        loop {
            let mut ready = self.socket.readable().await?;
            match recv(self.socket.get_ref(), &mut buffer, RecvFlags::empty()) {
                Ok((length, _)) if is_hotplug(buffer.get(..length).unwrap_or_default()) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => ready.clear_ready(),
                // The socket's buffer overflowed: a lost message may have been about hardware.
                Err(Errno::NOBUFS) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns true if the message is about a CPU, memory or a NUMA node that was added or removed. It starts
/// with `online@/devices/system/cpu/cpu3`, up to the first zero byte.
fn is_hotplug(message: &[u8]) -> bool {
    let header = message.split(|byte| *byte == 0).next().unwrap_or_default();
    let Some((action, path)) = std::str::from_utf8(header).ok().and_then(|text| text.split_once('@')) else {
        return false;
    };
    let system = ["/devices/system/cpu/cpu", "/devices/system/memory/memory", "/devices/system/node/node"];
    matches!(action, "add" | "remove" | "online" | "offline")
        && system.iter().any(|prefix| {
            path.strip_prefix(prefix)
                .is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_added_or_removed_hardware_is_hotplug() {
        for yes in [
            &b"online@/devices/system/cpu/cpu3\0ACTION=online\0SUBSYSTEM=cpu\0"[..],
            b"offline@/devices/system/memory/memory32\0",
            b"add@/devices/system/node/node1",
            b"remove@/devices/system/cpu/cpu128\0",
        ] {
            assert!(is_hotplug(yes), "{}", String::from_utf8_lossy(yes));
        }
        for no in [
            &b"change@/devices/system/cpu/cpu3\0"[..],
            b"add@/devices/virtual/net/veth1\0",
            b"add@/devices/system/cpu/cpufreq\0",
            b"add@/devices/system/cpu/cpu\0",
            b"add@/devices/system/cpu/cpu3/cache\0",
            b"libudev\0\xfe\xed\xca\xfe",
            b"",
            b"\xff\xff@/devices/system/cpu/cpu1",
        ] {
            assert!(!is_hotplug(no), "{}", String::from_utf8_lossy(no));
        }
    }
}
