//! Jars of servers and peers that run on Java, fetched once from Maven Central into an ignored folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{find_program, last_lines};
use crate::{Error, lock, say};

/// A set of artifacts and all they need to run.
pub(crate) struct JarSet {
    pub(crate) name: &'static str,
    size: &'static str,
    artifacts: &'static [Artifact],
}

/// Kafka's broker, its storage tool, and a logger.
pub(crate) const KAFKA: JarSet = JarSet {
    name: "kafka",
    size: "44 MB",
    artifacts: &[
        ("org.apache.kafka", "kafka_2.13", "4.3.1"),
        // Kafka logs through slf4j 1.
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ],
};

/// Kafka's command-line tools, which lie in no broker's class path.
pub(crate) const KAFKA_TOOLS: JarSet =
    JarSet { name: "kafka-tools", size: "43 MB", artifacts: &[("org.apache.kafka", "kafka-tools", "4.3.1")] };

/// RocketMQ's name server, broker and proxy.
pub(crate) const ROCKETMQ: JarSet = JarSet {
    name: "rocketmq",
    size: "102 MB",
    artifacts: &[
        ("org.apache.rocketmq", "rocketmq-namesrv", "5.5.0"),
        ("org.apache.rocketmq", "rocketmq-broker", "5.5.0"),
        ("org.apache.rocketmq", "rocketmq-proxy", "5.5.0"),
    ],
};

/// XXL-JOB's executors: what is deployed widely, and the newest release. With a logger.
pub(crate) const XXL_JOB: [JarSet; 2] = [xxl_job(&[XXL_JOB_2, LOGGER]), xxl_job(&[XXL_JOB_3, LOGGER])];

type Artifact = (&'static str, &'static str, &'static str);

const XXL_JOB_2: Artifact = ("com.xuxueli", "xxl-job-core", "2.4.2");
const XXL_JOB_3: Artifact = ("com.xuxueli", "xxl-job-core", "3.3.2");
const LOGGER: Artifact = ("org.slf4j", "slf4j-simple", "2.0.17");

const fn xxl_job(artifacts: &'static [Artifact]) -> JarSet {
    JarSet { name: "xxl-job", size: "12 MB", artifacts }
}

impl JarSet {
    /// The class path of the set; fetches it the first time.
    pub(crate) fn class_path(&self, home: &Path) -> Result<String, Error> {
        Ok(format!("{}/*", self.folder(home)?.display()))
    }

    /// The folder of the set; fetches it the first time.
    pub(crate) fn folder(&self, home: &Path) -> Result<PathBuf, Error> {
        let version = self.artifacts.first().map_or("", |(_, _, version)| version);
        let jars = home.join("jars").join(format!("{}-{version}", self.name));
        if !jars.is_dir() {
            let parent = home.join("jars");
            fs::create_dir_all(&parent).map_err(Error::io(format!("make {}", parent.display())))?;
            // Two starts at once fetch once.
            let _held = lock::acquire(&parent.join("lock"))?;
            if !jars.is_dir() {
                self.fetch(&parent, &jars)?;
            }
        }
        Ok(jars)
    }

    /// Fetches into a folder beside and renames it: a set is whole or absent.
    fn fetch(&self, parent: &Path, jars: &Path) -> Result<(), Error> {
        let mvn = find_program("mvn", "maven", &[])?;
        say(&format!("fetching the jars of {} with Maven ({}), once", self.name, self.size));
        let work =
            tempfile::tempdir_in(parent).map_err(Error::io(format!("write to {}", parent.display())))?;
        let pom = work.path().join("pom.xml");
        fs::write(&pom, self.pom()).map_err(Error::io(format!("write {}", pom.display())))?;
        let out = work.path().join("jars");
        let output = Command::new(mvn)
            .args(["-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"])
            .arg(format!("-DoutputDirectory={}", out.display()))
            .current_dir(work.path())
            .stdin(Stdio::null())
            .output()
            .map_err(Error::io("run mvn"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout);
            return Err(Error::Fetch { what: self.name.to_owned(), output: last_lines(&text, 15) });
        }
        fs::rename(&out, jars).map_err(Error::io(format!("move the jars to {}", jars.display())))
    }

    fn pom(&self) -> String {
        let dependencies: String = self
            .artifacts
            .iter()
            .map(|(group, artifact, version)| {
                format!(
                    "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
                     <version>{version}</version></dependency>\n"
                )
            })
            .collect();
        format!(
            "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\n\
             <groupId>windfall</groupId><artifactId>{}</artifactId><version>1</version><packaging>pom</packaging>\n\
             <dependencies>\n{dependencies}</dependencies></project>\n",
            self.name
        )
    }
}

/// The path of Java.
pub(crate) fn java() -> Result<PathBuf, Error> {
    let home = std::env::var_os("JAVA_HOME").map(|home| PathBuf::from(home).join("bin"));
    find_program("java", "default-jre-headless", home.as_slice())
}
