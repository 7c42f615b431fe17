//! An S3 server on loopback, whose buckets are the folders of one folder. It holds nothing of worth.

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use std::error::Error;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, folder, access_key_id, secret_access_key] = &arguments[..] else {
        return Err("windfall-s3-server ADDRESS FOLDER ACCESS_KEY_ID SECRET_ACCESS_KEY".into());
    };
    let files = FileSystem::new(folder).map_err(|error| format!("the folder {folder}: {error:?}"))?;
    let mut service = S3ServiceBuilder::new(files);
    service.set_auth(SimpleAuth::from_single(access_key_id.as_str(), secret_access_key.as_str()));
    let service = service.build();
    let listener = TcpListener::bind(address).await?;
    println!("listening on {address}");
    loop {
        let (stream, _) = listener.accept().await?;
        let service = service.clone();
        tokio::spawn(async move {
            let served =
                Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            if let Err(error) = served {
                eprintln!("a connection has ended: {error}");
            }
        });
    }
}
