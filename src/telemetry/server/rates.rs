//! Limits how many requests are served per second, so that a client in a loop neither delays the agent nor
//! keeps out the kubelet, which has another address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;

use tokio::time::Instant;

use crate::util::sync::lock;
use crate::util::token_bucket::TokenBucket;

/// Requests per second of one address, and its burst. Prometheus, the kubelet and a person make a few.
const EACH: [f64; 2] = [50.0, 100.0];
/// Requests per second of all addresses together, and their burst.
const ALL: [f64; 2] = [200.0, 400.0];
/// Requests per second of one address, and its burst, that do not count for [`ALL`]: enough for three probes
/// a second, whatever other addresses do.
const RESERVED: [f64; 2] = [4.0, 8.0];
/// Maximum number of addresses that are remembered.
const ADDRESSES: usize = 256;

#[derive(Debug)]
pub(super) struct Rates(Mutex<State>);

#[derive(Debug)]
struct State {
    addresses: HashMap<IpAddr, Address>,
    all: TokenBucket,
}

#[derive(Debug)]
struct Address {
    each: TokenBucket,
    reserved: TokenBucket,
    used: Instant,
}

impl Rates {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { addresses: HashMap::new(), all: bucket(ALL, Instant::now()) }))
    }

    pub(super) fn allow(&self, address: IpAddr) -> bool {
        let (state, now) = (lock(&self.0), Instant::now());
        let has = |bucket: &TokenBucket| bucket.wait(now).is_zero();
        // An address that is not remembered has its reserve.
        state
            .addresses
            .get(&address)
            .is_none_or(|own| has(&own.each) && (has(&own.reserved) || has(&state.all)))
    }

    pub(super) fn take(&self, address: IpAddr) -> bool {
        let (mut state, now) = (lock(&self.0), Instant::now());
        let State { addresses, all } = &mut *state;
        if addresses.len() >= ADDRESSES
            && !addresses.contains_key(&address)
            && let Some((&oldest, _)) = addresses.iter().min_by_key(|(_, own)| own.used)
        {
            // The longest unused one: a client in a loop is remembered.
            addresses.remove(&oldest);
        }
        let own = addresses.entry(address).or_insert_with(|| Address {
            each: bucket(EACH, now),
            reserved: bucket(RESERVED, now),
            used: now,
        });
        own.used = now;
        own.each.take_now(now) && (own.reserved.take_now(now) || all.take_now(now))
    }
}

fn bucket([per_second, burst]: [f64; 2], now: Instant) -> TokenBucket {
    TokenBucket::new(per_second, burst, now)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    /// Returns how many of the next thousand requests are served.
    fn served(rates: &Rates, number: u32) -> usize {
        let served = (0..1000).filter(|_| rates.take(address(number))).count();
        assert!(!rates.allow(address(number)));
        served
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_its_rate() {
        let rates = Rates::new();
        assert_eq!(served(&rates, 1), 100);
        advance(Duration::from_secs(1)).await;
        assert_eq!(served(&rates, 1), 50);
        assert!(rates.allow(address(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_others_do_an_address_has_its_reserve() {
        let rates = Rates::new();
        let all: usize = (0..100).map(|number| served(&rates, number)).sum();
        assert_eq!(all, 400 + 100 * 8);
        for _ in 0..10 {
            (0..100).for_each(|number| assert!(served(&rates, number) < 400));
            assert!((0..3).all(|_| rates.allow(address(1000)) && rates.take(address(1000))), "the kubelet");
            advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_addresses_are_remembered_and_the_busy_ones_stay() {
        let rates = Rates::new();
        served(&rates, 0);
        for number in 1..10_000 {
            rates.take(address(number));
            assert!(!rates.take(address(0)), "it was forgotten");
            // In this order, whatever the clock's resolution.
            advance(Duration::from_micros(1)).await;
        }
        assert_eq!(lock(&rates.0).addresses.len(), ADDRESSES);
    }
}
