//! The figures, part by part.

use crate::costs::{Costs, Key};
use crate::figure::{Figure, Figures};
use crate::inputs::Inputs;
use crate::numbers::{ceil, real, text};

/// Part of the users whose events go to the master topic; the rest go to the backup topic.
pub(crate) const MASTER_PART: f64 = 0.9;
/// Open packs of one queue, side and type in a sender: `SdkOptions::shards`.
const OPEN_PACKS: f64 = 2.0;
/// Events of a pack at most.
const PACK_EVENTS_MAX: f64 = 256.0;
/// The largest spool of a sender: `SdkOptions::spool_bytes`.
const SPOOL_BYTES_MAX: f64 = 68_719_476_736.0;
/// Partitions of the topics in `kafka.send` and `kafka.consume`.
const MEASURED_PARTITIONS: f64 = 10.0;
/// Cores of the machine that the benchmarks ran on.
const MEASURED_CORES: f64 = 2.0;
/// Timers that are due within so many seconds are in Redis: `horizon_ms`.
const HORIZON_S: f64 = 7_200.0;
const DAY_S: f64 = 86_400.0;

/// The flow of the load, which all parts start from.
pub(crate) struct Flow {
    /// Rewards of the peak, over all types.
    pub total: f64,
    /// Events per second that come, by type.
    pub come_per_s: Vec<f64>,
    /// Events per second that are granted while there is a backlog, by type.
    pub granted_per_s: Vec<f64>,
    /// Orders per second that the ledger writes: those that a connector pays twice.
    pub written_per_s: f64,
}

impl Flow {
    pub fn new(inputs: &Inputs) -> Self {
        let rate = real(inputs.rewards_per_s);
        let come_per_s: Vec<f64> = inputs.shares().iter().map(|share| rate * share).collect();
        let capped = |(come, one): (&f64, &crate::TypeInput)| {
            one.rate_per_s.map_or(*come, |limit| come.min(real(limit)))
        };
        let mut granted_per_s: Vec<f64> = come_per_s.iter().zip(&inputs.types).map(capped).collect();
        let sum: f64 = granted_per_s.iter().sum();
        let part = inputs.global_per_s.map_or(1.0, |global| (real(global) / sum).min(1.0));
        granted_per_s.iter_mut().for_each(|granted| *granted *= part);
        let writes =
            |(granted, one): (&f64, &crate::TypeInput)| granted * if one.by_connector { 2.0 } else { 1.0 };
        let written_per_s = granted_per_s.iter().zip(&inputs.types).map(writes).sum();
        Self { total: rate * real(inputs.for_s), come_per_s, granted_per_s, written_per_s }
    }

    pub fn granted(&self) -> f64 {
        self.granted_per_s.iter().sum()
    }
}

/// What the parts come to: the figures, and what a reader must know beside them.
pub(crate) struct Sized {
    pub figures: Vec<Figure>,
    pub notes: Vec<String>,
    /// By part: how often the capacity covers the need.
    pub covers: Vec<(&'static str, f64)>,
}

pub(crate) fn size(inputs: &Inputs, costs: &Costs, flow: &Flow, backlog_max: f64) -> Sized {
    let mut sizing = Sizing { inputs, flow, out: Figures::new(costs), notes: Vec::new(), covers: Vec::new() };
    let packs_per_s = sizing.load(backlog_max);
    sizing.senders(packs_per_s);
    sizing.brokers(packs_per_s);
    let ledgers = sizing.ledgers();
    sizing.consumers(ledgers);
    sizing.tokens(backlog_max);
    sizing.wallets();
    sizing.timers();
    let Sizing { out, notes, covers, .. } = sizing;
    Sized { figures: out.all, notes, covers }
}

/// The number of ledgers that a load needs, or was given.
pub(crate) fn ledgers(inputs: &Inputs, costs: &Costs, flow: &Flow) -> f64 {
    let needed = flow.written_per_s * inputs.headroom / costs.of(Key::LedgerGrants);
    inputs.ledgers.map_or(real(ceil(needed).max(1)), real)
}

struct Sizing<'a> {
    inputs: &'a Inputs,
    flow: &'a Flow,
    out: Figures<'a>,
    notes: Vec<String>,
    covers: Vec<(&'static str, f64)>,
}

impl Sizing<'_> {
    fn cost(&self, key: Key) -> f64 {
        self.out.costs.of(key)
    }

    /// Rounds up to whole servers, and notes how often they cover the need.
    fn servers(&mut self, part: &'static str, needed: f64, least: f64) -> f64 {
        let count = real(ceil(needed * self.inputs.headroom)).max(least);
        self.cover(part, count, needed);
        count
    }

    fn cover(&mut self, part: &'static str, has: f64, needs: f64) {
        if needs > 0.0 {
            self.covers.push((part, has / needs));
        }
    }

    fn load(&mut self, backlog_max: f64) -> f64 {
        let (rate, linger_s) = (real(self.inputs.rewards_per_s), self.cost(Key::LingerMs) / 1_000.0);
        let most = PACK_EVENTS_MAX.min(65_536.0 / self.cost(Key::WireEvent));
        let mut packs_per_s = 0.0;
        for come in &self.flow.come_per_s {
            for side in [MASTER_PART, 1.0 - MASTER_PART] {
                let of_a_pack = come * side / real(self.inputs.senders) / OPEN_PACKS;
                packs_per_s += come * side / (1.0 + of_a_pack * linger_s).min(most);
            }
        }
        let out = &mut self.out;
        out.part("load");
        out.add("rewards", self.flow.total, "", "rewards per second × seconds", &[]);
        let keys = [Key::LingerMs, Key::WireEvent];
        let formula = "by type and topic: events ÷ (1 + what comes to one open pack while it lingers, at most 256 events or 64 KiB)";
        out.extrapolate("records per second", packs_per_s, "/s", formula, &keys);
        out.extrapolate("events per record", rate / packs_per_s, "", "rewards ÷ records", &keys);
        let bytes = rate * out.costs.of(Key::WireEvent);
        out.extrapolate("bytes per second", bytes, "B/s", "rewards × wire_event_bytes", &[Key::WireEvent]);
        out.add(
            "rewards waiting at the peak",
            backlog_max,
            "",
            "simulation: the largest backlog over all types",
            &[],
        );
        let bytes = backlog_max * out.costs.of(Key::WireEvent);
        out.extrapolate(
            "bytes waiting at the peak",
            bytes,
            "B",
            "backlog × wire_event_bytes",
            &[Key::WireEvent],
        );
        packs_per_s
    }

    fn senders(&mut self, packs_per_s: f64) {
        let senders = real(self.inputs.senders);
        let cores = real(self.inputs.rewards_per_s) * self.cost(Key::SendCpu) / 1e9;
        let usable = self.cost(Key::Cores) * self.cost(Key::CoreUse);
        self.out.part("senders");
        self.out.extrapolate(
            "cores that send",
            cores / self.cost(Key::CoreUse),
            "",
            "rewards × send_cpu_ns ÷ core_use, within the activity services or in gateways",
            &[Key::SendCpu, Key::CoreUse],
        );
        let machines = real(ceil(cores / usable).max(1));
        let keys = [Key::SendCpu, Key::Cores, Key::CoreUse];
        self.out.extrapolate("machines that send", machines, "", "cores ÷ (machine_cores × core_use)", &keys);
        self.cover("senders", senders * usable, cores);
        let spool = packs_per_s / senders * real(self.inputs.broker_outage_s) * self.cost(Key::PackSlot);
        let formula = "records of one sender × seconds without a broker × pack_slot_bytes";
        self.out.extrapolate("spool of each sender", spool, "B", formula, &[Key::PackSlot, Key::LingerMs]);
        if spool > SPOOL_BYTES_MAX {
            self.notes.push(format!(
                "A spool has 64 GiB at most, and {} senders would need more: name more senders, or expect `send_bonus` to \
                 refuse rewards before {} s without a broker are over.",
                self.inputs.senders, self.inputs.broker_outage_s
            ));
        }
    }

    fn brokers(&mut self, packs_per_s: f64) {
        let (rate, copies) = (real(self.inputs.rewards_per_s), real(self.inputs.replication));
        let bytes = rate * self.cost(Key::WireEvent);
        let read = self.flow.granted() * self.cost(Key::WireEvent);
        let kept = self.retained() * self.cost(Key::WireEvent) * copies;
        let out_bytes = bytes * (copies - 1.0) + read;
        self.out.part("brokers");
        self.out.extrapolate(
            "disk writes per second",
            bytes * copies,
            "B/s",
            "bytes × replication",
            &[Key::WireEvent],
        );
        let formula = "bytes × (replication − 1) + what consumers read";
        self.out.extrapolate("network out per second", out_bytes, "B/s", formula, &[Key::WireEvent]);
        self.out.extrapolate(
            "disk for the retention",
            kept,
            "B",
            "orders within retention-days × wire_event_bytes × replication",
            &[Key::WireEvent],
        );
        let headroom = self.inputs.headroom;
        let by = [
            (
                "brokers for the events",
                rate * copies / self.cost(Key::BrokerEvents),
                Key::BrokerEvents,
                "rewards × replication × headroom ÷ broker_events_per_s: a copy counts as a write",
            ),
            (
                "brokers for the records",
                packs_per_s * copies / self.cost(Key::BrokerRecords),
                Key::BrokerRecords,
                "records × replication × headroom ÷ broker_records_per_s",
            ),
            (
                "brokers for the network",
                (bytes * copies).max(out_bytes) / self.cost(Key::Nic),
                Key::Nic,
                "the larger of bytes in and out × headroom ÷ nic_bytes_per_s",
            ),
            (
                "brokers for the disks' speed",
                bytes * copies / self.cost(Key::DiskWrite),
                Key::DiskWrite,
                "disk writes × headroom ÷ disk_bytes_per_s",
            ),
            (
                "brokers for the disks' size",
                kept / self.cost(Key::DiskSize) / headroom,
                Key::DiskSize,
                "disk for the retention ÷ disk_bytes",
            ),
        ];
        let mut most = 0.0_f64;
        for (name, needed, key, formula) in by {
            self.out.extrapolate(name, real(ceil(needed * headroom)), "", formula, &[Key::WireEvent, key]);
            most = most.max(needed);
        }
        let brokers = self.servers("brokers", most, copies);
        let formula = "the largest of these, at least replication; so many for the master topics and as many for the backup \
                       topics, which take all of it while the master is away";
        self.out.extrapolate("brokers of each of two clusters", brokers, "", formula, &[Key::BrokerEvents]);
        self.partitions(brokers);
    }

    fn partitions(&mut self, brokers: f64) {
        let headroom = self.inputs.headroom;
        let ledgers = ledgers(self.inputs, self.out.costs, self.flow);
        for (one, come) in self.inputs.types.iter().zip(&self.flow.come_per_s) {
            let each = self.out.costs.of(Key::BrokerEvents) / MEASURED_PARTITIONS;
            let partitions = real(ceil(come * headroom / each)).max(brokers).max(2.0 * ledgers);
            let formula = "its rewards × headroom ÷ (broker_events_per_s ÷ 10 partitions measured), over all fleets; at least \
                           one per broker and consumer";
            let name = format!("partitions of each topic of {}", one.name);
            self.out.extrapolate(&name, partitions, "", formula, &[Key::BrokerEvents]);
        }
    }

    /// The records that the brokers keep.
    fn retained(&self) -> f64 {
        let inputs = self.inputs;
        let part = (real(inputs.retention_days) / real(inputs.order_days)).min(1.0);
        if inputs.orders == 0 { self.flow.total } else { (real(inputs.orders) * part).max(self.flow.total) }
    }

    fn ledgers(&mut self) -> f64 {
        let flow = self.flow;
        let ledgers = ledgers(self.inputs, self.out.costs, flow);
        self.cover("ledgers", ledgers * self.cost(Key::LedgerGrants), flow.written_per_s);
        let keys = [Key::LedgerGrants];
        self.out.part("ledger");
        let formula = "what the limits pass; an order that a connector pays is written twice";
        self.out.add("orders written per second", flow.written_per_s, "/s", formula, &[]);
        let formula = match self.inputs.ledgers {
            Some(_) => "as --ledgers says",
            None => {
                "orders written × headroom ÷ ledger_grants_per_s, each with its consumers on machines like the measured one"
            }
        };
        self.out.extrapolate("ledgers (PostgreSQL primaries)", ledgers, "", formula, &keys);
        self.out.extrapolate(
            "cores of PostgreSQL and the consumers' grants",
            flow.written_per_s * MEASURED_CORES / self.cost(Key::LedgerGrants) / self.cost(Key::CoreUse),
            "",
            "orders written × 2 cores ÷ ledger_grants_per_s ÷ core_use",
            &[Key::LedgerGrants, Key::CoreUse],
        );
        let orders = if self.inputs.orders == 0 { self.flow.total } else { real(self.inputs.orders) };
        let bytes = orders * self.cost(Key::OrderBytes);
        self.out.extrapolate(
            "disk of all ledgers",
            bytes,
            "B",
            "orders × order_bytes, without replicas",
            &[Key::OrderBytes],
        );
        self.out.extrapolate(
            "disk of each ledger",
            bytes / ledgers,
            "B",
            "of all ÷ ledgers",
            &[Key::OrderBytes],
        );
        if ledgers > 1.0 {
            self.notes.push(format!(
                "Windfall cannot split one ledger: a fleet has one, and nothing assigns users to ledgers. {ledgers} ledgers mean \
                 {ledgers} fleets, each with topics, consumers, token prefix, budgets and a wallet of its own; the activity \
                 service must choose the fleet of a user the same way each time, and so must the wallet front end. One fleet \
                 alone grants {} orders per second at most as far as it was measured, on two cores; a larger PostgreSQL was \
                 not measured.",
                text(self.cost(Key::LedgerGrants))
            ));
        }
        let come: f64 = flow.granted();
        let (capacity, written) = (ledgers * self.cost(Key::LedgerGrants), flow.written_per_s);
        if capacity < written {
            self.notes.push(format!(
                "The ledgers take {} orders per second and the limits pass {} ({} rewards): the ledgers decide how long the \
                 backlog lasts.",
                text(capacity.round()),
                text(written.round()),
                text(come.round())
            ));
        }
        ledgers
    }

    fn consumers(&mut self, ledgers: f64) {
        let cores = self.flow.granted() * self.cost(Key::ConsumeCpu) / 1e9 / self.cost(Key::CoreUse);
        self.out.part("consumers");
        let formula = "rewards granted × consume_cpu_ns ÷ core_use, beside the grants that the ledger's figure contains";
        self.out.extrapolate(
            "cores that read and dispatch",
            cores,
            "",
            formula,
            &[Key::ConsumeCpu, Key::CoreUse],
        );
        let by_rate = self.flow.granted() / self.cost(Key::ConsumeRate);
        let processes = self.servers("consumers", by_rate, 2.0 * ledgers);
        let formula =
            "rewards granted × headroom ÷ consume_events_per_s, at least two per ledger, so that one may die";
        self.out.extrapolate("consumer processes", processes, "", formula, &[Key::ConsumeRate]);
        let formula = "not on the way of events, since consumers grant themselves: two for direct grants and the archive of each ledger";
        self.out.add("reward services", 2.0 * ledgers, "", formula, &[]);
    }

    fn tokens(&mut self, backlog_max: f64) {
        let (puts, removals) = (real(self.inputs.rewards_per_s), self.flow.granted());
        let by_rate = (puts + removals) / self.cost(Key::TokenPuts);
        let bytes = backlog_max * self.cost(Key::TokenUser);
        let by_memory = bytes / self.cost(Key::RedisNode);
        self.out.part("token store");
        let formula = "rewards + those granted, whose tokens are removed; a removal counts as a put";
        self.out.extrapolate("writes per second", puts + removals, "/s", formula, &[]);
        let formula = "backlog × token_user_bytes: a token stays until its reward is credited";
        self.out.extrapolate("memory of the tokens", bytes, "B", formula, &[Key::TokenUser]);
        let masters = self.servers("token store", by_rate.max(by_memory), 1.0);
        let formula = "the larger of writes ÷ token_puts_per_s and memory ÷ redis_node_bytes, × headroom";
        let keys = [Key::TokenPuts, Key::TokenUser, Key::RedisNode];
        self.out.extrapolate("Redis masters for tokens", masters, "", formula, &keys);
        self.out.extrapolate("nodes with a replica each", 2.0 * masters, "", "masters × 2", &keys);
    }

    fn wallets(&mut self) {
        let reads = real(self.inputs.wallet_reads_per_s);
        if reads == 0.0 {
            return;
        }
        let verified = reads * self.cost(Key::TokensRead);
        let cores = verified * MEASURED_CORES / self.cost(Key::TokensVerified) / self.cost(Key::CoreUse);
        self.out.part("wallets");
        let formula = "reads × tokens_a_read";
        self.out.extrapolate("tokens verified per second", verified, "/s", formula, &[Key::TokensRead]);
        let formula = "tokens verified × 2 cores ÷ tokens_verified_per_s ÷ core_use; Redis and the callers' part are among them";
        let keys = [Key::TokensVerified, Key::TokensRead, Key::CoreUse];
        self.out.extrapolate("cores that list and verify tokens", cores, "", formula, &keys);
        let machines = real(ceil(cores * self.inputs.headroom / self.cost(Key::Cores)).max(2));
        let keys = [Key::TokensVerified, Key::TokensRead, Key::Cores, Key::CoreUse];
        self.out.extrapolate(
            "machines for token services",
            machines,
            "",
            "cores × headroom ÷ machine_cores",
            &keys,
        );
        self.cover("wallets", machines * self.cost(Key::Cores), cores);
        self.notes.push(
            "The balance that a wallet reads from the ledger was not measured and is not in these cores: read it from replicas \
             of PostgreSQL or keep it in the front end for some seconds."
                .into(),
        );
    }

    fn timers(&mut self) {
        if self.inputs.timers == 0 {
            return;
        }
        let (timers, rate) = (real(self.inputs.timers), real(self.inputs.timers_per_s));
        let near = (rate * HORIZON_S).min(timers);
        let (near_bytes, all_bytes) = (near * self.cost(Key::NearTimer), timers * self.cost(Key::NearTimer));
        self.out.part("timers");
        let span_s = real(self.inputs.timer_days) * DAY_S;
        self.out.add("timers due per second, on average", timers / span_s, "/s", "timers ÷ timer-days", &[]);
        self.out.extrapolate("timers in Redis at most", near, "", "timers-per-s × 2 h, with a far tier", &[]);
        let formula = "timers in Redis × near_timer_bytes";
        self.out.extrapolate("memory of Redis", near_bytes, "B", formula, &[Key::NearTimer]);
        let formula = "all timers × near_timer_bytes";
        self.out.extrapolate("the same without a far tier", all_bytes, "B", formula, &[Key::NearTimer]);
        let used_s = rate * (self.cost(Key::RedisAddCpu) + self.cost(Key::RedisFireCpu)) / 1e9;
        let by_cpu = used_s / self.cost(Key::CoreUse);
        let masters = self.servers("timers", by_cpu.max(near_bytes / self.cost(Key::RedisNode)), 1.0);
        let formula =
            "the larger of memory ÷ redis_node_bytes and timers-per-s × (add + fire) ÷ core_use, × headroom";
        let keys = [Key::NearTimer, Key::RedisNode, Key::RedisAddCpu, Key::RedisFireCpu, Key::CoreUse];
        self.out.extrapolate("Redis masters for timers", masters, "", formula, &keys);
        let far = timers * self.cost(Key::FarTimer);
        self.out.extrapolate(
            "folder or bucket of far timers",
            far,
            "B",
            "timers × far_timer_bytes",
            &[Key::FarTimer],
        );
        let cores = rate * (self.cost(Key::AddCpu) + self.cost(Key::FireCpu)) / 1e9 / self.cost(Key::CoreUse);
        let formula = "timers-per-s × (timer_add_cpu_ns + timer_fire_cpu_ns) ÷ core_use";
        let keys = [Key::AddCpu, Key::FireCpu, Key::CoreUse];
        self.out.extrapolate("cores of schedulers", cores, "", formula, &keys);
        self.out.add(
            "schedulers at least",
            2.0,
            "",
            "so that one may die; one of them keeps the far tier",
            &[],
        );
    }
}
