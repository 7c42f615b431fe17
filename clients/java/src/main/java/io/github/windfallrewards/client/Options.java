package io.github.windfallrewards.client;

import java.io.File;
import java.time.Duration;
import java.util.List;

/** How to reach a service. */
public final class Options {
    final List<String> endpoints;
    final String bearerKey;
    final File caFile;
    final File clientCertFile;
    final File clientKeyFile;
    final String serverName;
    final boolean keyInPlainText;
    final Duration connectTimeout;
    final Duration attemptTimeout;
    final int attempts;

    private Options(Builder builder) {
        endpoints = List.copyOf(builder.endpoints);
        bearerKey = builder.bearerKey;
        caFile = builder.caFile;
        clientCertFile = builder.clientCertFile;
        clientKeyFile = builder.clientKeyFile;
        serverName = builder.serverName;
        keyInPlainText = builder.keyInPlainText;
        connectTimeout = builder.connectTimeout;
        attemptTimeout = builder.attemptTimeout;
        attempts = builder.attempts;
        check();
    }

    /** Options with their defaults. */
    public static Builder builder() {
        return new Builder();
    }

    /** Shows the options without the key. */
    @Override
    public String toString() {
        return "endpoints " + endpoints + ", " + attempts + " attempts of " + attemptTimeout;
    }

    private void check() {
        require(endpoints.size() >= 1 && endpoints.size() <= 64, "endpoints: their number is not 1 to 64");
        require(isUpToAMinute(connectTimeout), "connectTimeout is " + connectTimeout + ": 1 ms to a minute is allowed");
        require(isUpToAMinute(attemptTimeout), "attemptTimeout is " + attemptTimeout + ": 1 ms to a minute is allowed");
        require(attempts >= 1 && attempts <= 10, "attempts is " + attempts + ": 1 to 10 is allowed");
        require((clientCertFile == null) == (clientKeyFile == null), "clientCertFile and clientKeyFile come together");
        // The key itself stays out of the message.
        require(bearerKey == null || isVisibleAscii(bearerKey), "bearerKey is not visible ASCII");
    }

    static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalArgumentException("option " + otherwise);
        }
    }

    static boolean isVisibleAscii(String text) {
        return text.chars().allMatch(letter -> letter >= '!' && letter <= '~');
    }

    private static boolean isUpToAMinute(Duration duration) {
        return duration.toMillis() >= 1 && duration.compareTo(Duration.ofMinutes(1)) <= 0;
    }

    /** Makes options. */
    public static final class Builder {
        private List<String> endpoints = List.of("http://127.0.0.1:8080");
        private String bearerKey;
        private File caFile;
        private File clientCertFile;
        private File clientKeyFile;
        private String serverName;
        private boolean keyInPlainText;
        private Duration connectTimeout = Duration.ofMillis(500);
        private Duration attemptTimeout = Duration.ofSeconds(1);
        private int attempts = 3;

        private Builder() {}

        /**
         * 1 to 64 of {@code https://host:port} or {@code http://host:port}. Calls use them in turn, and each further attempt of a
         * call uses another one. Default: {@code http://127.0.0.1:8080}.
         */
        public Builder endpoints(String... endpoints) {
            this.endpoints = List.of(endpoints);
            return this;
        }

        /** This service's key, which is never shown. Either this, or a certificate. */
        public Builder bearerKey(String bearerKey) {
            this.bearerKey = bearerKey;
            return this;
        }

        /** The file with the certificates (PEM) that servers are checked against; https needs it. */
        public Builder caFile(File caFile) {
            this.caFile = caFile;
            return this;
        }

        /** The files with this service's certificate chain and its private key (PEM, the key as PKCS #8). */
        public Builder clientCertificate(File certFile, File keyFile) {
            clientCertFile = certFile;
            clientKeyFile = keyFile;
            return this;
        }

        /** The name in the servers' certificates, where it is not the endpoints' host. */
        public Builder serverName(String serverName) {
            this.serverName = serverName;
            return this;
        }

        /** Sends the bearer key over http to other machines, too: where something else encrypts. Default: {@code false}. */
        public Builder keyInPlainText(boolean keyInPlainText) {
            this.keyInPlainText = keyInPlainText;
            return this;
        }

        /** How long making a connection may take: at most a minute; default 500 ms. */
        public Builder connectTimeout(Duration connectTimeout) {
            this.connectTimeout = connectTimeout;
            return this;
        }

        /**
         * How long one attempt may take, connecting included: at most a minute; default 1 s. Choose rather more for withdrawals
         * than the wallet waits for a payout, or its answer comes with a later attempt.
         */
        public Builder attemptTimeout(Duration attemptTimeout) {
            this.attemptTimeout = attemptTimeout;
            return this;
        }

        /** The number of attempts of one call at most, the first included: at most 10; default 3. */
        public Builder attempts(int attempts) {
            this.attempts = attempts;
            return this;
        }

        /** @throws IllegalArgumentException where an option is out of its range, or does not fit another */
        public Options build() {
            return new Options(this);
        }
    }
}
