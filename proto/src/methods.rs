//! The methods of every service, as the `.proto` files list them: who mounts a service is handed each of its methods,
//! and cannot forget one.
//!
//! For a service there are an enum of its methods, which a router matches without a wildcard, and a function that hands
//! each method to a [`Mount`], with the call of the generated trait that belongs to it. Both are generated: a method
//! that is added to a `.proto` file is mounted, or the router does not compile.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::pin::Pin;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// A method of one service.
pub trait Method: Copy {
    /// The service's name.
    const SERVICE: &'static str;

    /// The method's name.
    fn name(self) -> &'static str;
}

/// What a call is waiting for.
pub type Reply<R> = Pin<Box<dyn Future<Output = Result<Response<R>, Status>> + Send>>;

/// Calls one method of a service.
pub type Call<S, Q, R> = fn(Arc<S>, Request<Q>) -> Reply<R>;

/// Takes the methods of a service `S`, whose methods are the enum `M`.
pub trait Mount<S, M: Method> {
    /// Takes one.
    fn method<Q, R>(&mut self, method: M, call: Call<S, Q, R>)
    where
        Q: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static;
}

include!(concat!(env!("OUT_DIR"), "/methods.rs"));
