//! The counters of an SDK, and the names under which they are exported.

use windfall_contract::declare_metrics;
use windfall_contract::metrics::Each;

declare_metrics! {
    /// Counters since the start.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct SdkStats {
        counter "windfall_sent_events_total" "Rewards that calls returned a token for" {
            /// Calls that returned Ok.
            pub sent: u64,
        }
        counter "windfall_refused_calls_total"
        "Calls refused because the spool, or the share of it that the event's queue may take, was full" {
            /// Calls refused because the spool or the queue's share of it was full.
            pub refused: u64,
        }
        gauge "windfall_sdk_rules_version" "The version of the live rules that calls follow" {
            /// The version of the rules that calls follow.
            pub rules_version: u64,
        }
        gauge "windfall_packs" ["state"]
        "Closed packs that no broker has yet; `without_route`: those of them that wait for rules that take them" {
            /// Closed packs that no broker has stored yet.
            pub packs_in_flight: usize as "in_flight",
            /// The part of these packs that waits for rules with a route for them.
            pub packs_waiting: usize as "without_route",
        }
        gauge "windfall_spool_slots" ["state"] "Slots of the spool: in use, and in all" {
            /// Slots of the spool in use, and in all.
            pub spool_slots: (u64, u64) = used_and_all,
        }
        counter "windfall_sdk_panics_total" ["thread"]
        "Panics of the SDK's threads, which start again: the pump, the one that follows the rules, and the one that writes tokens" {
            /// Panics of the pump.
            pub pump_panics: u64 as "pump",
            /// Panics of the thread that follows the rules.
            pub rules_panics: u64 as "rules",
            /// Panics of the thread that writes tokens.
            pub tokens_panics: u64 as "tokens",
        }
        gauge "windfall_sdk_failing_threads"
        "Threads of the SDK that panic again and again; calls still store their events" {
            /// Threads that panic again and again. Calls still store their events in the spool, but packs, rules or
            /// tokens go no further: restart the process.
            pub failing_threads: u64,
        }
        counter "windfall_returned_packs_total" "Times that the fan-out gave a pack back" {
            /// How often the fan-out gave a pack back.
            pub packs_returned: u64,
        }
        gauge "windfall_minting_key" "The number of the key that tokens are minted with" {
            /// The number of the key that tokens are minted with.
            pub minting_key: u64,
        }
        gauge "windfall_signing_key" "The number of the key that records are signed with; 0: they are not signed" {
            /// The number of the key that packs are signed with; 0 where they are not signed.
            pub signing_key: u64,
        }
        counter "windfall_tokens_total" ["state"]
        "Tokens on their way to the token store: written, or dropped because the store was behind or down" {
            /// Tokens written to the store.
            pub tokens_written: u64 as "written",
            /// Tokens dropped because the store was behind or down.
            pub tokens_dropped: u64 as "dropped",
        }
        gauge "windfall_waiting_tokens" "Tokens that wait for the token store" {
            /// Tokens that wait for the store.
            pub tokens_waiting: usize,
        }
        counter "windfall_token_store_errors_total" "Writes that the token store did not take" {
            /// Writes that the store did not take.
            pub token_store_failures: u64,
        }
    }
}

fn used_and_all((used, all): &(u64, u64), each: &mut Each<'_>) {
    each(&["used"], *used);
    each(&["all"], *all);
}
