package io.github.windfallrewards.client;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptors;
import io.grpc.ConnectivityState;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.net.InetAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** A way to a service. Threads and clients may share it. */
public final class Connection implements AutoCloseable {
    /** The bytes of an answer at most: a full page of the archive. */
    private static final int ANSWER_MAX_BYTES = 16 << 20;
    /** The first wait between two attempts, where the server says nothing; it doubles. */
    private static final long WAIT_FIRST_MS = 25;
    /** The longest wait between two attempts, whatever the server asks for: longer ones are the caller's decision. */
    private static final long WAIT_MAX_MS = 1_000;

    private static final long KEEP_ALIVE_EVERY_S = 15;
    private static final long KEEP_ALIVE_TIMEOUT_S = 5;

    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    private final Options options;
    private final List<ManagedChannel> channels = new ArrayList<>();
    private final AtomicInteger next = new AtomicInteger();

    /** An answer, and whether an earlier attempt of the same call may have been done; or how the call failed. */
    record Answer<R>(R message, boolean inDoubt, Failure failure) {}

    private Connection(Options options) throws IOException {
        this.options = options;
        ChannelCredentials secure = secureCredentials(options);
        for (String endpoint : options.endpoints) {
            channels.add(channel(endpoint, secure));
        }
    }

    /**
     * Prepares channels, which connect when they are needed.
     *
     * @throws IllegalArgumentException where an endpoint cannot be, or does not fit the other options
     * @throws IOException where a file of the options cannot be used
     */
    public static Connection open(Options options) throws IOException {
        return new Connection(options);
    }

    /** Ends the connection. Calls in flight end unanswered. */
    @Override
    public void close() {
        channels.forEach(ManagedChannel::shutdownNow);
    }

    /**
     * Makes a call of any service, and makes it again where that is safe and may help: with a method of the generated classes,
     * such as {@code JobsGrpc.getGetMethod()}. A null user stands for none.
     *
     * @throws WindfallException where it was not answered with a result
     */
    public <Q, R> R call(MethodDescriptor<Q, R> method, Q request, Repeat repeat, EndUser user) {
        Answer<R> answer = ask(method, request, repeat, user);
        if (answer.failure() != null) {
            throw WindfallException.ofCall(answer.failure());
        }
        return answer.message();
    }

    /** The same, for those who read failures in another way, or answers that may say of a part that it was not done. */
    <Q, R> Answer<R> ask(MethodDescriptor<Q, R> method, Q request, Repeat repeat, EndUser user) {
        int attempts = repeat == Repeat.SAFE ? options.attempts : 1;
        int first = next.getAndIncrement();
        boolean inDoubt = false;
        long waitMs = WAIT_FIRST_MS;
        for (int attempt = 1; ; attempt++) {
            ManagedChannel channel = channels.get(Math.floorMod(first + attempt - 1, channels.size()));
            Answer<R> answer = once(channel, method, request, user, inDoubt);
            Failure failure = answer.failure();
            if (failure == null) {
                return answer;
            }
            long askedMs = failure.retryAfterMs() == null ? waitMs : failure.retryAfterMs();
            if (attempt == attempts || !failure.mayHelp() || !sleep(jittered(Math.min(askedMs, WAIT_MAX_MS)))) {
                return new Answer<>(null, inDoubt, failure.lastWord(inDoubt));
            }
            inDoubt |= failure.leavesDoubt();
            waitMs = Math.min(waitMs * 2, WAIT_MAX_MS);
        }
    }

    private <Q, R> Answer<R> once(
            ManagedChannel channel, MethodDescriptor<Q, R> method, Q request, EndUser user, boolean inDoubt) {
        Metadata head = new Metadata();
        if (options.bearerKey != null) {
            head.put(AUTHORIZATION, "Bearer " + options.bearerKey);
        }
        if (user != null) {
            if (!Options.isVisibleAscii(user.value)) {
                return new Answer<>(null, inDoubt, Failure.ownRefusal("the user's token is not visible ASCII"));
            }
            head.put(user.header, user.value);
        }
        long deadlineNs = System.nanoTime() + options.attemptTimeout.toNanos();
        if (!isConnected(channel, Math.min(options.connectTimeout.toNanos(), options.attemptTimeout.toNanos()))) {
            return new Answer<>(null, inDoubt, Failure.neverSent("there is no connection to the server"));
        }
        Sighting seen = new Sighting();
        // The server is told the deadline: it need not go on with what nobody waits for.
        CallOptions call = CallOptions.DEFAULT
                .withDeadlineAfter(deadlineNs - System.nanoTime(), TimeUnit.NANOSECONDS)
                .withStreamTracerFactory(seen);
        Channel told = ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(head));
        try {
            return new Answer<>(ClientCalls.blockingUnaryCall(told, method, call, request), inDoubt, null);
        } catch (StatusRuntimeException error) {
            return new Answer<>(null, inDoubt, Failure.of(error, seen));
        }
    }

    /** Waits until the channel is connected, or it failed to connect, or the time is over, or the thread is interrupted. */
    private static boolean isConnected(ManagedChannel channel, long timeoutNs) {
        long deadlineNs = System.nanoTime() + timeoutNs;
        while (true) {
            ConnectivityState state = channel.getState(true);
            if (state == ConnectivityState.READY) {
                return true;
            }
            if (state == ConnectivityState.TRANSIENT_FAILURE || state == ConnectivityState.SHUTDOWN) {
                // The next attempt need not wait for gRPC's own, ever longer pauses.
                channel.resetConnectBackoff();
                return false;
            }
            CountDownLatch changed = new CountDownLatch(1);
            channel.notifyWhenStateChanged(state, changed::countDown);
            try {
                if (!changed.await(deadlineNs - System.nanoTime(), TimeUnit.NANOSECONDS)) {
                    return false;
                }
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
                return false;
            }
        }
    }

    private ManagedChannel channel(String endpoint, ChannelCredentials secure) {
        URI address = uri(endpoint);
        boolean isSecure = "https".equals(address.getScheme());
        Options.require(!isSecure || secure != null, "endpoints: " + endpoint + " needs caFile");
        if (!isSecure) {
            Options.require(options.clientCertFile == null,
                    "endpoints: " + endpoint + " shows no certificate; use https, or leave clientCertificate out");
            Options.require(options.bearerKey == null || options.keyInPlainText || isThisMachine(address.getHost()),
                    "endpoints: " + endpoint + " would carry the key in plain text; use https, or set keyInPlainText");
        }
        int port = address.getPort() >= 0 ? address.getPort() : isSecure ? 443 : 80;
        ChannelCredentials credentials = isSecure ? secure : InsecureChannelCredentials.create();
        ManagedChannelBuilder<?> builder = Grpc.newChannelBuilderForAddress(address.getHost(), port, credentials)
                .maxInboundMessageSize(ANSWER_MAX_BYTES)
                .keepAliveTime(KEEP_ALIVE_EVERY_S, TimeUnit.SECONDS)
                .keepAliveTimeout(KEEP_ALIVE_TIMEOUT_S, TimeUnit.SECONDS)
                .keepAliveWithoutCalls(true)
                // Windfall's own rules say what is repeated, so that gRPC's must not.
                .disableRetry()
                .disableServiceConfigLookUp()
                .proxyDetector(target -> null);
        if (options.serverName != null) {
            builder.overrideAuthority(options.serverName);
        }
        return builder.build();
    }

    private static URI uri(String endpoint) {
        String wrong = "endpoints: " + endpoint + " is neither https://host:port nor http://host:port";
        try {
            URI address = new URI(endpoint);
            String scheme = address.getScheme();
            Options.require(("https".equals(scheme) || "http".equals(scheme)) && address.getHost() != null, wrong);
            return address;
        } catch (URISyntaxException error) {
            throw new IllegalArgumentException("option " + wrong, error);
        }
    }

    private static ChannelCredentials secureCredentials(Options options) throws IOException {
        if (options.caFile == null) {
            return null;
        }
        TlsChannelCredentials.Builder secure = TlsChannelCredentials.newBuilder().trustManager(options.caFile);
        if (options.clientCertFile != null) {
            secure.keyManager(options.clientCertFile, options.clientKeyFile);
        }
        return secure.build();
    }

    private static boolean isThisMachine(String host) {
        // A name is not looked up: what it means may change.
        boolean isAddress = host.startsWith("[") || host.matches("[0-9.]+");
        try {
            return host.equals("localhost") || isAddress && InetAddress.getByName(host).isLoopbackAddress();
        } catch (IOException error) {
            return false;
        }
    }

    /** Says whether it slept to the end. */
    private static boolean sleep(long ms) {
        try {
            Thread.sleep(ms);
            return true;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /** A random wait between half of this and all of it, so that callers that were refused together do not come back together. */
    private static long jittered(long waitMs) {
        return waitMs / 2 + ThreadLocalRandom.current().nextLong(waitMs / 2 + 1);
    }
}
