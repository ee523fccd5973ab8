//! Patroni with its own etcd: several servers of which one is the leader, and another takes over when it is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use atta_cluster::{Binaries, give_to_server, run_unprivileged};
use tokio::time::sleep;

use crate::guarded::Guarded;
use crate::pgbouncer::free_port;

/// The name of the cluster.
const SCOPE: &str = "atta";

/// How long the cluster may take for any change: the key of a dead leader alone is valid for 20 seconds.
const PATIENCE: Duration = Duration::from_secs(180);

/// Ends a node as if its machine were switched off: kills Patroni and all processes of PostgreSQL without a shutdown.
const KILL_NODE: &str = r#"
server=$(head -n 1 "$0/postmaster.pid" 2>/dev/null)
if [ -n "$server" ] && grep -qF "$0" "/proc/$server/cmdline" 2>/dev/null; then
  backends=$(ps -o pid= --ppid "$server")
else
  server=
fi
kill -9 $child $server $backends 2>/dev/null
for process in $server $backends; do
  while kill -0 "$process" 2>/dev/null && ! ps -o stat= -p "$process" | grep -q Z; do sleep 0.02; done
done
"#;

/// If all our processes are killed at once, the nodes still have to end before their folders can be removed.
const END_ETCD: &str = r#"kill -9 $child; sleep 0.5; rm -rf -- "$0""#;

/// A cluster of several nodes on loopback, with synchronous replication. It ends when this value is dropped, or when
/// this process ends, and leaves nothing behind.
#[derive(Debug)]
pub struct Patroni {
    nodes: Vec<Node>,
    /// After the nodes: its guard removes the folder that contains all of them.
    _etcd: Guarded,
    folder: PathBuf,
}

#[derive(Debug)]
struct Node {
    name: String,
    port: u16,
    data: PathBuf,
    settings: PathBuf,
    process: Option<Guarded>,
}

impl Patroni {
    /// Starts `count` nodes, and waits until one leads and the others follow, one of them synchronously.
    pub async fn start(binaries: &Binaries, count: usize) -> Patroni {
        let folder = std::env::temp_dir().join(format!("atta-patroni-{}", std::process::id()));
        make_folder(&folder);
        let (etcd, etcd_port) = start_etcd(&folder);
        let nodes = (1..=count).map(|n| Node::make(&folder, n, binaries, etcd_port)).collect();
        let mut patroni = Patroni { nodes, _etcd: etcd, folder };
        for index in 0..count {
            patroni.start_node(index);
        }
        patroni.wait_until_whole().await;
        patroni
    }

    /// The connection string with all nodes, which connects to the leader.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("postgres://postgres@{}/postgres?target_session_attrs=read-write", hosts.join(","))
    }

    /// The connection string of one node.
    pub fn node_url(&self, index: usize) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.nodes[index].port)
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The node that leads.
    pub fn leader(&self) -> Option<usize> {
        let members = self.members();
        let leader = members.iter().find(|member| member.is("Leader", "running"))?;
        self.nodes.iter().position(|node| node.name == leader.name)
    }

    /// Makes another node the leader, by an orderly switchover, as `patronictl switchover` does. Blocks until it is
    /// done.
    pub fn switch_over(&self) {
        let switched = self.control(&["switchover", SCOPE, "--force"]);
        assert!(switched.is_ok(), "the switchover: {switched:?}\n{}", self.logs());
    }

    /// Ends a node by `kill -9`: Patroni and PostgreSQL. Blocks until they are gone.
    pub fn kill(&mut self, index: usize) {
        self.nodes[index].process = None;
    }

    /// Starts a node that was killed. Its server follows the current leader.
    pub fn start_node(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let mut command = Command::new("patroni");
        node.process = Some(Guarded::start_unprivileged(command.arg(&node.settings), &node.data, KILL_NODE));
    }

    /// Waits until one leads and all others follow, one of them synchronously.
    pub async fn wait_until_whole(&self) {
        let start = Instant::now();
        loop {
            let members = self.members();
            let count =
                |role: &str, state: &str| members.iter().filter(|member| member.is(role, state)).count();
            let followers = |role: &str| count(role, "running") + count(role, "streaming");
            let (leaders, synchronous) = (count("Leader", "running"), followers("Sync Standby"));
            if leaders == 1 && synchronous == 1 && synchronous + followers("Replica") == self.count() - 1 {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "gave up waiting for the cluster to be whole: {members:?}\n{}",
                self.logs()
            );
            sleep(Duration::from_millis(500)).await;
        }
    }

    fn members(&self) -> Vec<Member> {
        let listed = self.control(&["list", SCOPE, "--format", "tsv"]).unwrap_or_default();
        listed.lines().skip(1).filter_map(Member::parse).collect()
    }

    fn control(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new("patronictl");
        command.arg("-c").arg(&self.nodes[0].settings).args(words).current_dir("/");
        // Required by Click, which parses patronictl's arguments.
        command.env("LC_ALL", "C.UTF-8");
        run_unprivileged(&mut command).expect("there is a user for servers");
        let said = command.output().map_err(|error| format!("patronictl: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if said.status.success() {
            return Ok(text(&said.stdout));
        }
        Err(format!("{}{}", text(&said.stdout), text(&said.stderr)))
    }

    /// The last lines of the nodes' logs, for a test that has failed.
    fn logs(&self) -> String {
        let mut logs = String::new();
        for node in &self.nodes {
            let file = self.folder.join(&node.name).join("patroni.log");
            let log = fs::read_to_string(&file).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            logs += &format!("{}:\n{}\n", node.name, lines[lines.len().saturating_sub(20)..].join("\n"));
        }
        logs
    }
}

/// A line of `patronictl list`.
#[derive(Debug)]
struct Member {
    name: String,
    role: String,
    state: String,
}

impl Member {
    /// Columns: cluster, member, host, role, state, and more.
    fn parse(line: &str) -> Option<Member> {
        let mut columns = line.split('\t').skip(1).map(str::to_owned);
        let name = columns.next()?;
        let mut columns = columns.skip(1);
        Some(Member { name, role: columns.next()?, state: columns.next()? })
    }

    fn is(&self, role: &str, state: &str) -> bool {
        self.role == role && self.state == state
    }
}

impl Node {
    fn make(parent: &Path, number: usize, binaries: &Binaries, etcd_port: u16) -> Node {
        let name = format!("node{number}");
        let folder = parent.join(&name);
        make_folder(&folder);
        let (port, api_port) = (free_port(), free_port());
        let (data, settings) = (folder.join("data"), folder.join("patroni.yml"));
        let text = SETTINGS
            .replace("{scope}", SCOPE)
            .replace("{name}", &name)
            .replace("{folder}", &folder.display().to_string())
            .replace("{bin}", &binaries.folder().display().to_string())
            .replace("{etcd}", &etcd_port.to_string())
            .replace("{api}", &api_port.to_string())
            .replace("{port}", &port.to_string());
        fs::write(&settings, text).expect("Patroni's settings are written");
        Node { name, port, data, settings, process: None }
    }
}

/// The shortest times that Patroni allows for detecting a missing leader; the rest is the default.
const SETTINGS: &str = r#"
scope: {scope}
name: {name}
log:
  dir: {folder}
restapi:
  listen: 127.0.0.1:{api}
  connect_address: 127.0.0.1:{api}
etcd3:
  host: 127.0.0.1:{etcd}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 5
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      parameters:
        max_connections: 100
        shared_buffers: 64MB
        logging_collector: on
  initdb:
    - encoding: UTF8
    - locale: C
    - no-sync
  pg_hba:
    - host all all 127.0.0.1/32 trust
    - host replication all 127.0.0.1/32 trust
postgresql:
  listen: 127.0.0.1:{port}
  connect_address: 127.0.0.1:{port}
  data_dir: {folder}/data
  bin_dir: {bin}
  pgpass: {folder}/pgpass
  remove_data_directory_on_rewind_failure: true
  remove_data_directory_on_diverged_timelines: true
  authentication:
    superuser:
      username: postgres
    replication:
      username: postgres
  parameters:
    unix_socket_directories: {folder}
"#;

fn start_etcd(folder: &Path) -> (Guarded, u16) {
    let (port, peer_port) = (free_port(), free_port());
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
    let mut command = Command::new("etcd");
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"]);
    command.arg("--data-dir").arg(folder.join("etcd"));
    (Guarded::start_unprivileged(&command, folder, END_ETCD), port)
}

fn make_folder(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder for Patroni");
    give_to_server(folder).expect("a folder of ours");
}
