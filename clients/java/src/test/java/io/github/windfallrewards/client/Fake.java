package io.github.windfallrewards.client;

import io.github.windfallrewards.v1.AddTimerReply;
import io.github.windfallrewards.v1.ArchiveGrpc;
import io.github.windfallrewards.v1.GetWalletReply;
import io.github.windfallrewards.v1.ListTokensReply;
import io.github.windfallrewards.v1.SendBonusBatchReply;
import io.github.windfallrewards.v1.SendBonusBatchRequest;
import io.github.windfallrewards.v1.SendBonusReply;
import io.github.windfallrewards.v1.SendGrpc;
import io.github.windfallrewards.v1.TimersGrpc;
import io.github.windfallrewards.v1.TokensGrpc;
import io.github.windfallrewards.v1.VerifyTokensReply;
import io.github.windfallrewards.v1.WalletGrpc;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.function.Function;

/** Answers every call with the next of its ends, and with the method's reply when there is none left. */
final class Fake implements ServerInterceptor, AutoCloseable {
    /** How a call ends: it hangs where there is no code, or is answered with a status, with a hint and a reason or without. */
    record End(Status.Code code, String message, String hint, String reason) {}

    static final End HANGS = new End(null, null, null, null);
    private static final Metadata.Key<String> HINT = Metadata.Key.of("retry-after-ms", Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> REASON = Metadata.Key.of("reason", Metadata.ASCII_STRING_MARSHALLER);
    private static final Map<String, Object> REPLIES = Map.of(
            "windfall.v1.Send/SendBonus", SendBonusReply.newBuilder().setToken("token").build(),
            "windfall.v1.Tokens/ListTokens", ListTokensReply.getDefaultInstance(),
            "windfall.v1.Tokens/VerifyTokens", VerifyTokensReply.getDefaultInstance(),
            "windfall.v1.Wallet/GetWallet", GetWalletReply.getDefaultInstance(),
            "windfall.v1.Timers/Add", AddTimerReply.newBuilder().setId("1").build());

    private final Server server;
    private final Queue<End> ends = new ArrayDeque<>();
    private final List<Metadata> heads = new ArrayList<>();
    volatile Function<SendBonusBatchRequest, SendBonusBatchReply> batch;

    Fake() throws IOException {
        this(InsecureServerCredentials.create());
    }

    Fake(ServerCredentials credentials) throws IOException {
        server = Grpc.newServerBuilderForPort(0, credentials)
                .addService(new SendGrpc.SendImplBase() {})
                .addService(new TokensGrpc.TokensImplBase() {})
                .addService(new WalletGrpc.WalletImplBase() {})
                .addService(new TimersGrpc.TimersImplBase() {})
                .addService(new ArchiveGrpc.ArchiveImplBase() {})
                .intercept(this)
                .build()
                .start();
    }

    static End said(Status.Code code) {
        return new End(code, "w", null, null);
    }

    static End hinted(Status.Code code) {
        return new End(code, "later", "7", null);
    }

    static End because(String reason) {
        return new End(Status.Code.FAILED_PRECONDITION, "w", null, reason);
    }

    String endpoint() {
        return "http://127.0.0.1:" + server.getPort();
    }

    synchronized void say(End... next) {
        ends.clear();
        heads.clear();
        ends.addAll(List.of(next));
    }

    synchronized int calls() {
        return heads.size();
    }

    synchronized Metadata head(int at) {
        return heads.get(at);
    }

    private synchronized End next(Metadata head) {
        heads.add(head);
        return ends.poll();
    }

    @Override
    public void close() {
        server.shutdownNow();
    }

    @Override
    public <Q, R> ServerCall.Listener<Q> interceptCall(
            ServerCall<Q, R> call, Metadata head, ServerCallHandler<Q, R> handler) {
        call.request(2);
        return new ServerCall.Listener<>() {
            private Q request;

            @Override
            public void onMessage(Q message) {
                request = message;
            }

            @Override
            public void onHalfClose() {
                answer(call, next(head), request);
            }
        };
    }

    @SuppressWarnings("unchecked")
    private <Q, R> void answer(ServerCall<Q, R> call, End end, Q request) {
        if (end == HANGS) {
            return;
        }
        Metadata trailers = new Metadata();
        if (end != null) {
            if (end.hint() != null) {
                trailers.put(HINT, end.hint());
            }
            if (end.reason() != null) {
                trailers.put(REASON, end.reason());
            }
            call.close(end.code().toStatus().withDescription(end.message()), trailers);
            return;
        }
        Object reply = request instanceof SendBonusBatchRequest requests
                ? batch.apply(requests)
                : REPLIES.get(call.getMethodDescriptor().getFullMethodName());
        call.sendHeaders(new Metadata());
        call.sendMessage((R) reply);
        call.close(Status.OK, trailers);
    }

    /** An address at which nobody listens. */
    static String nobody() throws IOException {
        try (ServerSocket socket = listen()) {
            return "http://127.0.0.1:" + socket.getLocalPort();
        }
    }

    static ServerSocket listen() throws IOException {
        return new ServerSocket(0, 16, InetAddress.getLoopbackAddress());
    }

    /** HTTP/2 by hand: takes each call whole, and resets its stream for this reason, until the socket is closed. */
    static void resetCalls(ServerSocket socket, int reason) {
        while (true) {
            try {
                Socket stream = socket.accept();
                Thread thread = new Thread(() -> reset(stream, reason));
                thread.setDaemon(true);
                thread.start();
            } catch (IOException closed) {
                return;
            }
        }
    }

    private static void reset(Socket stream, int reason) {
        final int data = 0;
        final int settings = 4;
        try (stream) {
            DataInputStream in = new DataInputStream(stream.getInputStream());
            OutputStream out = stream.getOutputStream();
            in.readNBytes(24);
            out.write(new byte[] {0, 0, 0, settings, 0, 0, 0, 0, 0});
            while (true) {
                int length = in.readUnsignedByte() << 16 | in.readUnsignedShort();
                int kind = in.readByte();
                int flags = in.readByte();
                int id = in.readInt();
                in.readNBytes(length);
                if (kind == settings && (flags & 1) == 0) {
                    out.write(new byte[] {0, 0, 0, settings, 1, 0, 0, 0, 0});
                } else if (kind == data && (flags & 1) == 1) {
                    out.write(new byte[] {0, 0, 4, 3, 0, (byte) (id >> 24), (byte) (id >> 16), (byte) (id >> 8), (byte) id,
                        0, 0, 0, (byte) reason});
                }
            }
        } catch (IOException gone) {
            // The caller has gone.
        }
    }
}
