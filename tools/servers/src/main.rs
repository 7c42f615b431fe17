//! `windfall-servers`: real servers on loopback, from the command line. `./dev up` calls it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::{Map, Value, json};
use windfall_servers::{Activity, Error, Private, STATE_VARIABLE, Server, Servers, Spec};

/// Real Kafka, RocketMQ, Redis, PostgreSQL, etcd and S3 servers on loopback.
#[derive(Debug, Parser)]
#[command(name = "windfall-servers", version)]
struct Arguments {
    /// The folder of state, data and logs [default: that of $WINDFALL_SERVERS, else .servers/run]
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Answers as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Starts what does not run and waits until it is ready [default: kafka kafka2 rocketmq redis postgres etcd]
    Up {
        names: Vec<String>,
        /// With TLS, by certificates of an authority of their own: DIR/tls/ca.pem
        #[arg(long)]
        tls: bool,
    },
    /// Ends servers and deletes their data [default: all]
    Down { names: Vec<String> },
    /// Says what there is
    Status,
    /// Stops a server's processes where they are (SIGSTOP)
    Freeze(Target),
    /// Lets a frozen server go on (SIGCONT)
    Thaw(Target),
    /// Ends a server at once (SIGKILL); its data stay
    Kill(Target),
    /// Ends a server in order; its data stay
    Stop(Target),
    /// Starts a stopped or killed server again, on the same ports and data
    Start(Target),
}

#[derive(Debug, clap::Args)]
struct Target {
    name: String,
    /// One process of it: namesrv, broker or proxy of rocketmq, node1 to node3 of redis-cluster
    #[arg(long)]
    part: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("windfall-servers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let servers = arguments
        .state
        .clone()
        .map_or_else(Servers::from_env, |dir| Servers::at(std::path::absolute(&dir).unwrap_or(dir)));
    match &arguments.command {
        Command::Up { names, tls } => {
            let names: Vec<&str> = if names.is_empty() {
                Spec::ALL.to_vec()
            } else {
                names.iter().map(String::as_str).collect()
            };
            if *tls {
                servers.up_by_tls(&names)?
            } else {
                servers.up(&names)?
            }
            print(&servers, arguments.json)
        }
        Command::Down { names } => {
            servers.down(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
            Private::sweep()
        }
        Command::Status => print(&servers, arguments.json),
        Command::Freeze(target) => target.find(&servers)?.freeze(),
        Command::Thaw(target) => target.find(&servers)?.thaw(),
        Command::Kill(target) => target.find(&servers)?.kill(),
        Command::Stop(target) => target.find(&servers)?.stop(),
        Command::Start(target) => target.find(&servers)?.start(),
    }
}

impl Target {
    fn find(&self, servers: &Servers) -> Result<Server, Error> {
        let server = servers.server(&self.name)?;
        match &self.part {
            Some(part) => server.part(part),
            None => Ok(server),
        }
    }
}

fn print(servers: &Servers, as_json: bool) -> Result<(), Error> {
    let list = servers.list()?;
    let state = servers.state_file();
    if as_json {
        let mut all = Map::new();
        for server in &list {
            all.insert(server.name().to_owned(), describe(server)?);
        }
        println!("{:#}", json!({ "state_file": state, "servers": all }));
        return Ok(());
    }
    for server in &list {
        println!("{:<14} {:<8} {}", server.name(), word(server.activity()?), server.url());
    }
    for ca in list.iter().filter_map(|server| server.settings().get("ca")).collect::<BTreeSet<_>>() {
        println!("authority      {ca}");
    }
    println!("export {STATE_VARIABLE}={}", state.display());
    Ok(())
}

fn describe(server: &Server) -> Result<Value, Error> {
    Ok(json!({
        "activity": word(server.activity()?),
        "url": server.url(),
        "addresses": server.addresses(),
        "settings": server.settings(),
        "pids": server.pids()?,
        "logs": server.logs(),
    }))
}

fn word(activity: Activity) -> &'static str {
    match activity {
        Activity::Running => "running",
        Activity::Frozen => "frozen",
        Activity::Stopped => "stopped",
    }
}
