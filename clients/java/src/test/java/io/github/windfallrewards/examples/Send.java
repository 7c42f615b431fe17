package io.github.windfallrewards.examples;

import io.github.windfallrewards.client.Connection;
import io.github.windfallrewards.client.Gateway;
import io.github.windfallrewards.client.Options;
import io.github.windfallrewards.client.Prize;
import io.github.windfallrewards.client.RedPacketRain;
import io.github.windfallrewards.client.WindfallException;
import io.github.windfallrewards.v1.User;
import java.time.Duration;
import java.time.Instant;

/**
 * Sends a reward through a gateway and shows the user's proof:
 *
 * <pre>mvn -q test-compile exec:java -Dexec.args="http://127.0.0.1:8080 KEY"</pre>
 */
public final class Send {
    private static final Duration PATIENCE = Duration.ofSeconds(10);

    private Send() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 2) {
            throw new IllegalArgumentException("give the gateway's address and a key of the role send");
        }
        Options options = Options.builder().endpoints(arguments[0]).bearerKey(arguments[1]).build();
        try (Connection connection = Connection.open(options)) {
            RedPacketRain rain = new RedPacketRain(new Gateway(connection), "spring-2027", "cash");
            System.out.println("the user's proof: " + giveRedPacket(rain, 42));
        }
    }

    /**
     * Sends packet 0 that the user takes in round 1. While the answer is "unknown" or "not now" it sends the same order again,
     * which credits once.
     */
    private static String giveRedPacket(RedPacketRain rain, long userId) throws InterruptedException {
        Instant end = Instant.now().plus(PATIENCE);
        while (true) {
            try {
                return rain.send(1, User.newBuilder().setUserId(userId).build(), 0, new Prize(888, "red packet"));
            } catch (WindfallException error) {
                if (!error.isWorthRetrying() || Instant.now().isAfter(end)) {
                    throw error;
                }
                Thread.sleep(Math.max(100, error.retryAfter().toMillis()));
            }
        }
    }
}
