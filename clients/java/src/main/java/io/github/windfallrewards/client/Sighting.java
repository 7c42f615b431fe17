package io.github.windfallrewards.client;

import io.grpc.Attributes;
import io.grpc.ClientStreamTracer;
import io.grpc.Metadata;

/** Notes when a call is put on a connection, and when a server ends it by itself. */
final class Sighting extends ClientStreamTracer.Factory {
    private volatile boolean sent;
    private volatile boolean answered;

    boolean wasSent() {
        return sent;
    }

    boolean wasAnswered() {
        return answered;
    }

    @Override
    public ClientStreamTracer newClientStreamTracer(ClientStreamTracer.StreamInfo info, Metadata headers) {
        return new ClientStreamTracer() {
            @Override
            public void streamCreated(Attributes transportAttributes, Metadata headers) {
                sent = true;
            }

            @Override
            public void inboundTrailers(Metadata trailers) {
                answered = true;
            }
        };
    }
}
