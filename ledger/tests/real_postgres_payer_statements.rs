//! Payers' statements against a ledger in PostgreSQL.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod payers;

use payers::{LIMITS, Place};
use windfall_ledger::{Auditor, Ledger, PostgresOptions, Unbudgeted};
use windfall_servers::Servers;

fn run(url: &str, schema: &str, sql: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let io = tokio::spawn(connection);
        client.batch_execute(&format!("SET search_path = {schema}; {sql}")).await.unwrap();
        drop(client);
        io.await.unwrap().unwrap();
    });
}

fn with_place(name: &str, test: impl FnOnce(Place<'_>)) {
    let servers = Servers::from_env_or_start(&["postgres"]).unwrap();
    let url = servers.server("postgres").unwrap().url().to_owned();
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let schema = format!("{name:.20}_{}_{since}", std::process::id());
    let options = PostgresOptions { schema, unbudgeted: Unbudgeted::Allow, ..PostgresOptions::default() };
    let ledger = Ledger::connect(&url, &options).unwrap();
    let auditor = || Auditor::connect(&url, &options).unwrap().with_limits(LIMITS);
    let raw = |sql: &str| run(&url, &options.schema, sql);
    test(Place { ledger, auditor: &auditor, raw: &raw });
}

macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        #[ignore = "needs real servers: ./dev test runs it"]
        fn $name() {
            with_place(stringify!($name), payers::$name);
        })*
    };
}

tests!(
    a_payer_that_agrees_has_no_difference,
    each_kind_of_difference_is_found,
    statements_that_meet_leave_no_gap,
    a_refused_order_that_is_paid_later_is_the_next_statements,
    what_nobody_can_claim_is_counted,
    what_operators_did_is_known,
    a_statement_is_compared_only_as_a_whole,
    a_wrong_file_does_not_fill_the_table,
    tables_are_made_beside_those_of_the_release_before,
    days_of_a_payer_with_another_clock_agree,
    writers_do_not_hold_a_comparison_up,
);
