//! Messages on our topic that are not ours: each comes as a record with its bytes, and none stops the others.

use super::ground::{Ground, drain, reader, write};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime};
use windfall_contract::broker::Broker;
use windfall_queue_rocketmq::RocketBroker;
use windfall_rocketmq_wire::proto::messaging_service_client::MessagingServiceClient;
use windfall_rocketmq_wire::proto::{
    Encoding, Message, MessageType, Resource, SendMessageRequest, SystemProperties,
};

fn message(topic: &str, id: usize, body: Vec<u8>, encoding: Encoding) -> Message {
    Message {
        topic: Some(Resource { resource_namespace: String::new(), name: topic.into() }),
        system_properties: Some(SystemProperties {
            message_id: format!("stranger-{id}"),
            body_encoding: encoding.into(),
            message_type: MessageType::Normal.into(),
            born_timestamp: Some(SystemTime::now().into()),
            ..Default::default()
        }),
        body: body.into(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real servers: ./dev test runs it"]
async fn strangers() {
    let ground = Ground::shared().await;
    let broker = RocketBroker::open(&ground.options).unwrap();
    broker.ensure_topic("mixed", 4).unwrap();
    write(&broker, "mixed", 0..10).await;
    let topic = format!("{}mixed", ground.options.prefix);
    let text = b"a pack of events ".repeat(50);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&text).unwrap();
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    zlib.write_all(&text).unwrap();
    let large: Vec<u8> = (0u8..251).cycle().take(1_000_000).collect();
    let bodies = [
        (b"garbage \xff\x00\xfe".to_vec(), Encoding::Identity, b"garbage \xff\x00\xfe".to_vec()),
        (gzip.finish().unwrap(), Encoding::Gzip, text.clone()),
        (zlib.finish().unwrap(), Encoding::Gzip, text),
        // Said to be packed, and not.
        (b"not packed".to_vec(), Encoding::Gzip, b"not packed".to_vec()),
        (large.clone(), Encoding::Identity, large),
    ];
    let endpoint =
        tonic::transport::Endpoint::from_shared(format!("http://{}", ground.options.endpoints[0])).unwrap();
    let mut stub = MessagingServiceClient::new(endpoint.connect().await.unwrap());
    let mut refused = 0;
    for (id, (body, encoding, _)) in bodies.iter().enumerate() {
        let messages = vec![message(&topic, id, body.clone(), *encoding)];
        let mut request = tonic_request(SendMessageRequest { messages });
        request.metadata_mut().insert("x-mq-client-id", "stranger".parse().unwrap());
        let answer = stub.send_message(request).await.unwrap().into_inner();
        let status = answer.status.unwrap();
        println!("{id}: {} {}", status.code, status.message);
        refused += usize::from(status.code != 20_000);
    }
    assert_eq!(refused, 0);
    let mut expected: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for (_, _, payload) in bodies {
        *expected.entry(payload).or_default() += 1;
    }
    for number in 0u64..10 {
        expected.insert(number.to_be_bytes().to_vec(), 1);
    }
    let mut reader = reader(&broker, "mixed", "g").await;
    let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let started = Instant::now();
    while seen.values().sum::<usize>() < 15 && started.elapsed() < Duration::from_secs(60) {
        for record in drain(&mut reader, Duration::from_millis(200)).await {
            *seen.entry(record.payload.to_vec()).or_default() += 1;
        }
    }
    let shape = |seen: &BTreeMap<Vec<u8>, usize>| -> Vec<_> {
        seen.iter().map(|(payload, count)| (payload.len(), payload.first().copied(), *count)).collect()
    };
    assert_eq!(shape(&seen), shape(&expected));
    assert_eq!(seen, expected);
    reader.commit().await.unwrap();
    assert_eq!(broker.lag("mixed", "g").await.unwrap().records(), 0);
}

fn tonic_request<T>(message: T) -> tonic::Request<T> {
    tonic::Request::new(message)
}
