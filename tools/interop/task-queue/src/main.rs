//! Drives a running task queue through `lmstfy-client`, as its registry has it: a client that was written for lmstfy by
//! others, and that knows nothing of Windfall. Ends with a status other than zero at the first step that goes wrong.

use anyhow::{Context, Result, bail, ensure};
use lmstfy_client::api::{Client, Job};
use std::time::{Duration, Instant};

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [host, port, namespace, token] = &words[..] else {
        bail!("usage: windfall-task-queue-peer HOST PORT NAMESPACE TOKEN");
    };
    let port = port.parse().context("the port is not a number")?;
    let client = Client::new(namespace, token, host, port, 0, 0);
    publishes_and_acknowledges(&client).await.context("publish, look, consume, acknowledge")?;
    waits(&client).await.context("consume with a timeout")?;
    keeps_times(&client).await.context("delay and ttl")?;
    replaces(&client).await.context("publish in place of a job")?;
    takes_in_batches(&client).await.context("consume a batch")?;
    takes_from_several(&client).await.context("consume from several queues")?;
    dies_and_comes_back(&client).await.context("tries and the dead letter")?;
    answers_synchronously(&client).await.context("a synchronous job")?;
    refuses(&client).await.context("refusals")?;
    let stranger = Client::new(namespace, "01AAAAAAAAAAAAAAAAAAAAAAAA", host, port, 0, 0);
    let refused = stranger.consume("plain".into(), 1, 0).await.expect_err("a token that nobody made");
    ensure!(refused.reason == "invalid token", "{refused}");
    println!("all steps were passed");
    Ok(())
}

async fn publish(
    client: &Client,
    queue: &str,
    data: &str,
    ttl: u32,
    tries: u32,
    delay: u32,
) -> Result<String> {
    let (id, request) = client.publish(queue.into(), String::new(), data.into(), ttl, tries, delay).await?;
    ensure!(id.len() == 26 && !request.is_empty(), "the job {id}, the request {request}");
    Ok(id)
}

/// The job that a call with these arguments finds.
async fn consume(client: &Client, queue: &str, ttr: u32, timeout: u32) -> Result<Job> {
    let mut jobs = client.consume(queue.into(), ttr, timeout).await?;
    ensure!(jobs.len() == 1, "{} jobs in {queue}", jobs.len());
    jobs.pop().context("there was one")
}

async fn is_empty(client: &Client, queue: &str) -> Result<()> {
    let jobs = client.consume(queue.into(), 10, 0).await?;
    ensure!(jobs.is_empty(), "{jobs:?} in {queue}");
    Ok(())
}

async fn publishes_and_acknowledges(client: &Client) -> Result<()> {
    let id = publish(client, "plain", "hello", 600, 3, 0).await?;
    ensure!(client.queue_size("plain".into()).await? == 1);
    for looked in
        [client.peek_queue("plain".into()).await?, client.peek_job("plain".into(), id.clone()).await?]
    {
        let job = looked.context("no job was seen")?;
        ensure!((&job.job_id, &job.data[..]) == (&id, "aGVsbG8="), "{job:?}");
    }
    let job = consume(client, "plain", 30, 0).await?;
    ensure!((&job.job_id, &job.queue[..], &job.data[..]) == (&id, "plain", "aGVsbG8="), "{job:?}");
    ensure!(job.namespace == client.namespace && (1..=600).contains(&job.ttl), "{job:?}");
    is_empty(client, "plain").await?;
    // An acknowledgement whose answer was lost is repeated.
    for _ in 0..2 {
        client.ack("plain".into(), id.clone()).await?;
    }
    ensure!(client.peek_job("plain".into(), id).await?.is_none());
    ensure!(client.queue_size("plain".into()).await? == 0);
    ensure!(client.peek_queue("plain".into()).await?.is_none());
    Ok(())
}

async fn waits(client: &Client) -> Result<()> {
    let began = Instant::now();
    ensure!(client.consume("waited".into(), 10, 1).await?.is_empty());
    ensure!(began.elapsed() >= Duration::from_secs(1), "it waited for {:?}", began.elapsed());
    let publishing = async {
        tokio::time::delay_for(Duration::from_millis(200)).await;
        publish(client, "waited", "late", 600, 1, 0).await
    };
    let (job, id) = tokio::join!(consume(client, "waited", 10, 60), publishing);
    ensure!(job?.job_id == id?);
    Ok(())
}

async fn keeps_times(client: &Client) -> Result<()> {
    let id = publish(client, "late", "delayed", 600, 1, 2).await?;
    is_empty(client, "late").await?;
    ensure!(client.queue_size("late".into()).await? == 0, "a delayed job is not ready");
    ensure!(client.peek_job("late".into(), id.clone()).await?.is_some());
    let job = consume(client, "late", 10, 60).await?;
    ensure!(job.job_id == id && job.elapsed_ms >= 2_000, "{job:?}");
    // A delayed job is cancelled by the call that acknowledges.
    let cancelled = publish(client, "late", "cancelled", 600, 1, 1).await?;
    client.ack("late".into(), cancelled).await?;
    let expired = publish(client, "short", "short", 1, 1, 0).await?;
    tokio::time::delay_for(Duration::from_millis(1_300)).await;
    is_empty(client, "short").await?;
    ensure!(client.peek_job("short".into(), expired).await?.is_none());
    is_empty(client, "late").await
}

async fn replaces(client: &Client) -> Result<()> {
    let old = publish(client, "replaced", "old", 600, 1, 0).await?;
    let (new, _) = client.publish("replaced".into(), old.clone(), b"new".to_vec(), 600, 1, 0).await?;
    ensure!(new != old);
    ensure!(client.peek_job("replaced".into(), old).await?.is_none());
    let job = consume(client, "replaced", 10, 0).await?;
    ensure!((&job.job_id, &job.data[..]) == (&new, "bmV3"), "{job:?}");
    is_empty(client, "replaced").await
}

async fn takes_in_batches(client: &Client) -> Result<()> {
    let mut published = Vec::new();
    for at in 0..10 {
        published.push(publish(client, "batch", &at.to_string(), 600, 1, 0).await?);
    }
    let mut taken = Vec::new();
    for count in [7, 100] {
        let jobs = client.batch_consume("batch".into(), 60, 0, count).await?;
        taken.extend(jobs.into_iter().map(|job| job.job_id));
    }
    taken.sort_unstable();
    published.sort_unstable();
    ensure!(taken == published, "{taken:?}, {published:?}");
    ensure!(client.batch_consume("batch".into(), 60, 0, 100).await?.is_empty());
    Ok(())
}

async fn takes_from_several(client: &Client) -> Result<()> {
    let both = || vec!["first".to_owned(), "second".to_owned()];
    publish(client, "second", "b", 600, 1, 0).await?;
    publish(client, "first", "a", 600, 1, 0).await?;
    for (queue, timeout) in [("first", 0), ("second", 60)] {
        let jobs = client.consume_from_queues(both(), 10, timeout).await?;
        ensure!(jobs.len() == 1 && jobs[0].queue == queue, "{jobs:?}");
    }
    ensure!(client.consume_from_queues(both(), 10, 0).await?.is_empty());
    Ok(())
}

/// Waits until one job is in the queue's dead letter; its id.
async fn dead(client: &Client, queue: &str) -> Result<String> {
    let began = Instant::now();
    loop {
        let (size, head) = client.peek_dead_letter(queue.into()).await?;
        if size == 1 {
            return Ok(head);
        }
        ensure!(
            size == 0 && head.is_empty() && began.elapsed() < PATIENCE,
            "{size} dead, the head is {head:?}"
        );
        tokio::time::delay_for(Duration::from_millis(50)).await;
    }
}

async fn dies_and_comes_back(client: &Client) -> Result<()> {
    let id = publish(client, "dying", "x", 600, 2, 0).await?;
    ensure!(consume(client, "dying", 1, 0).await?.job_id == id);
    // Its consumer said nothing: it is ready again.
    ensure!(consume(client, "dying", 1, 60).await?.job_id == id);
    ensure!(dead(client, "dying").await? == id);
    is_empty(client, "dying").await?;
    ensure!(client.respawn_dead_letter("dying".into(), 10, 60).await? == 1);
    ensure!(client.respawn_dead_letter("dying".into(), 10, 60).await? == 0);
    let job = consume(client, "dying", 10, 0).await?;
    ensure!(job.job_id == id && job.ttl <= 60, "{job:?}");
    client.ack("dying".into(), id).await?;
    let (size, _) = client.peek_dead_letter("dying".into()).await?;
    ensure!(size == 0);
    Ok(())
}

async fn answers_synchronously(client: &Client) -> Result<()> {
    let id = publish(client, "asked", "question", 600, 1, 0).await?;
    let worker = async {
        let job = consume(client, "asked", 10, 0).await?;
        publish(client, &job.job_id, "answer", 600, 1, 0).await
    };
    let (answer, published) = tokio::join!(consume(client, &id, 10, 60), worker);
    published?;
    ensure!(answer?.data == "YW5zd2Vy");
    Ok(())
}

async fn refuses(client: &Client) -> Result<()> {
    for (queue, ttl, tries, delay, expected) in [
        ("plain", 1, 1, 2, "ttl is shorter than delay"),
        ("plain", 9, 0, 0, "tries shouldn't be zero"),
        ("_plain", 9, 1, 0, "queue name contains forbidden characters"),
    ] {
        let refused = publish(client, queue, "x", ttl, tries, delay).await.expect_err(expected);
        ensure!(refused.to_string().contains(expected), "{refused}");
    }
    Ok(())
}
