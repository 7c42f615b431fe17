//! Sends a reward through a gateway. With the SDK linked, only the marked line would differ.
//!
//! `cargo run -p windfall-client --example send -- http://127.0.0.1:8080 KEY`

use windfall_client::{ClientOptions, GatewayClient, SendBonus, SendError};
use windfall_proto::scene::{Scene, SceneOrders};
use windfall_proto::v1::{Bonus, SendBonusRequest, User};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let endpoints = vec![arguments.next().unwrap_or_else(|| "http://127.0.0.1:8080".into())];
    let options = ClientOptions { endpoints, bearer_key: arguments.next(), ..ClientOptions::default() };

    // In process: let sender = windfall_sdk::Sdk::builder("windfall")…build()?;
    let sender = GatewayClient::open(options)?;

    println!("the user's proof: {}", give_red_packet(&sender, 42).await?);
    Ok(())
}

/// The activity service's own code: it knows the trait alone.
async fn give_red_packet(sender: &impl SendBonus, user_id: i64) -> Result<String, SendError> {
    // The number that the SDK's helpers make: sent by either, the reward is one order.
    let orders = SceneOrders::new(Scene::RedPacketRain, "spring-2027", "cash")
        .map_err(|why| SendError::invalid("activity", why))?;
    let request = SendBonusRequest {
        trade_no: orders.trade_no(1, user_id, 0),
        user: Some(User { user_id, ..User::default() }),
        activity: "spring-2027".into(),
        scene: "red-packet-rain".into(),
        bonus: Some(Bonus { r#type: "cash".into(), amount: 888, description: "red packet".into() }),
        ..SendBonusRequest::default()
    };
    Ok(sender.send_bonus(request).await?.token)
}
