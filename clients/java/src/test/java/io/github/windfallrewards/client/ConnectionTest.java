package io.github.windfallrewards.client;

import static io.github.windfallrewards.client.Fake.HANGS;
import static io.github.windfallrewards.client.Fake.because;
import static io.github.windfallrewards.client.Fake.hinted;
import static io.github.windfallrewards.client.Fake.said;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.windfallrewards.client.Fake.End;
import io.github.windfallrewards.client.Gateway.Sent;
import io.github.windfallrewards.client.WindfallException.Kind;
import io.github.windfallrewards.v1.AddTimerRequest;
import io.github.windfallrewards.v1.ArchiveGrpc;
import io.github.windfallrewards.v1.GetWalletRequest;
import io.github.windfallrewards.v1.ListTokensRequest;
import io.github.windfallrewards.v1.NewTimer;
import io.github.windfallrewards.v1.ReplayArchivedRequest;
import io.github.windfallrewards.v1.SendBonusBatchReply;
import io.github.windfallrewards.v1.SendBonusFailure;
import io.github.windfallrewards.v1.SendBonusRequest;
import io.github.windfallrewards.v1.SendBonusResult;
import io.github.windfallrewards.v1.WithdrawRequest;
import io.grpc.Metadata;
import io.grpc.Status.Code;
import java.io.IOException;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class ConnectionTest {
    /** A bound for a machine that is very busy. */
    private static final Duration LONG = Duration.ofSeconds(20);
    private static final EndUser USER = EndUser.named(1);
    private static final SendBonusRequest REWARD = SendBonusRequest.getDefaultInstance();

    private final List<Connection> connections = new ArrayList<>();
    private Fake fake;

    @BeforeEach
    void start() throws IOException {
        fake = new Fake();
    }

    @AfterEach
    void stop() {
        connections.forEach(Connection::close);
        fake.close();
    }

    private Options.Builder options() {
        return Options.builder().endpoints(fake.endpoint()).attemptTimeout(LONG).connectTimeout(LONG);
    }

    private Connection open(Options.Builder options) throws IOException {
        Connection connection = Connection.open(options.build());
        connections.add(connection);
        return connection;
    }

    private static WindfallException failed(Runnable call) {
        return assertThrows(WindfallException.class, call::run);
    }

    private static WindfallException replayed(Connection connection) {
        ReplayArchivedRequest request = ReplayArchivedRequest.newBuilder().setId(1).build();
        return failed(() -> connection.call(ArchiveGrpc.getReplayArchivedMethod(), request, Repeat.NEVER, null));
    }

    @Test
    void whatAStatusMeansAndHowOftenItIsAsked() throws Exception {
        Connection connection = open(options());
        Tokens tokens = new Tokens(connection);
        Runnable list = () -> tokens.list(USER, ListTokensRequest.getDefaultInstance());
        Map<Code, Kind> finals = Map.of(
                Code.INVALID_ARGUMENT, Kind.REFUSED, Code.UNAUTHENTICATED, Kind.DENIED, Code.PERMISSION_DENIED, Kind.DENIED,
                Code.NOT_FOUND, Kind.NOT_FOUND, Code.INTERNAL, Kind.UNANSWERED);
        finals.forEach((code, kind) -> {
            fake.say(said(code));
            assertEquals(kind, failed(list).kind());
            assertEquals(1, fake.calls(), code.toString());
        });
        for (Code code : List.of(Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED)) {
            fake.say(said(code), hinted(code));
            list.run();
            assertEquals(3, fake.calls(), code.toString());
        }
        End away = said(Code.UNAVAILABLE);
        End busy = hinted(Code.UNAVAILABLE);
        Map<List<End>, Kind> known = Map.of(
                List.of(away, away, away), Kind.UNANSWERED,
                List.of(busy, busy, busy), Kind.BUSY,
                // The last one did nothing; of the first ones nobody knows.
                List.of(away, away, busy), Kind.UNANSWERED,
                // A refusal for good after a lost answer says nothing of the attempt that was lost.
                List.of(away, said(Code.NOT_FOUND)), Kind.UNANSWERED,
                List.of(said(Code.RESOURCE_EXHAUSTED), said(Code.NOT_FOUND)), Kind.NOT_FOUND);
        known.forEach((ends, kind) -> {
            fake.say(ends.toArray(End[]::new));
            assertEquals(kind, failed(list).kind(), ends.toString());
            assertEquals(ends.size(), fake.calls());
        });
        fake.say(busy, busy, busy);
        assertEquals(Duration.ofMillis(7), failed(list).retryAfter());
        // An answer that does not fit the question is none.
        assertEquals(Kind.UNANSWERED, failed(() -> tokens.verify(USER, List.of("a"))).kind());
        fake.say(away);
        assertEquals(Kind.UNANSWERED, replayed(connection).kind());
        assertEquals(1, fake.calls(), "a replay is never made again by itself");
    }

    @Test
    void whatBecameOfAWithdrawal() throws Exception {
        Wallet wallet = new Wallet(open(options().attempts(1)));
        Map<End, Kind> known = Map.of(
                said(Code.INVALID_ARGUMENT), Kind.REFUSED, said(Code.PERMISSION_DENIED), Kind.DENIED,
                said(Code.FAILED_PRECONDITION), Kind.TOO_LITTLE, said(Code.ALREADY_EXISTS), Kind.TAKEN,
                said(Code.INTERNAL), Kind.UNANSWERED, said(Code.RESOURCE_EXHAUSTED), Kind.UNANSWERED,
                hinted(Code.UNAVAILABLE), Kind.UNANSWERED,
                because("user_frozen"), Kind.FROZEN, because("of_a_later_release"), Kind.TOO_LITTLE);
        known.forEach((end, kind) -> {
            fake.say(end);
            WindfallException error = failed(() -> wallet.withdraw(USER, WithdrawRequest.getDefaultInstance()));
            assertEquals(kind, error.kind());
            assertEquals(Duration.ofMillis(end.hint() == null ? 0 : 7), error.retryAfter());
        });
    }

    @Test
    void aCallThatIsResetMayHaveBeenDone() throws Exception {
        int enhanceYourCalm = 0x0b;
        int inadequateSecurity = 0x0c;
        for (int reason : new int[] {enhanceYourCalm, inadequateSecurity}) {
            try (ServerSocket socket = Fake.listen()) {
                Thread server = new Thread(() -> Fake.resetCalls(socket, reason));
                server.setDaemon(true);
                server.start();
                for (int attempts : new int[] {1, 2}) {
                    String endpoint = "http://127.0.0.1:" + socket.getLocalPort();
                    Connection connection = open(options().endpoints(endpoint).attempts(attempts));
                    assertEquals(Kind.UNANSWERED, failed(() -> new Gateway(connection).sendBonus(REWARD)).kind());
                    WithdrawRequest request = WithdrawRequest.getDefaultInstance();
                    assertEquals(Kind.UNANSWERED, failed(() -> new Wallet(connection).withdraw(USER, request)).kind());
                    WindfallException error = replayed(connection);
                    assertEquals(Kind.UNANSWERED, error.kind());
                    assertTrue(error.getMessage().contains("HTTP/2 error code"), "it was reset: " + error.getMessage());
                }
            }
        }
    }

    @Test
    void aLostAnswerIsAskedForAgainAndAtLastUnknown() throws Exception {
        Options.Builder hurried = options().attemptTimeout(Duration.ofMillis(300));
        // More attempts than are needed, for a machine that is very busy.
        Gateway patient = new Gateway(open(hurried.attempts(8)));
        fake.say(HANGS, HANGS);
        assertEquals("token", patient.sendBonus(REWARD).getToken());
        assertTrue(fake.calls() >= 3, "the same order, three times");
        Gateway hasty = new Gateway(open(hurried.attempts(2)));
        fake.say(HANGS, HANGS);
        assertEquals(Kind.UNANSWERED, failed(() -> hasty.sendBonus(REWARD)).kind());
        // The same where the last attempt is refused, for now or for good.
        for (End last : List.of(
                hinted(Code.UNAVAILABLE), said(Code.RESOURCE_EXHAUSTED), said(Code.FAILED_PRECONDITION))) {
            fake.say(HANGS, last);
            assertEquals(Kind.UNANSWERED, failed(() -> hasty.sendBonus(REWARD)).kind());
        }
    }

    @Test
    void aCallerThatIsInterruptedIsToldThatNobodyKnows() throws Exception {
        Gateway gateway = new Gateway(open(options()));
        gateway.sendBonus(REWARD);
        fake.say(HANGS);
        Thread.currentThread().interrupt();
        assertEquals(Kind.UNANSWERED, failed(() -> gateway.sendBonus(REWARD)).kind());
        assertTrue(Thread.interrupted(), "the interruption is the caller's to see");
        assertTrue(fake.calls() <= 1);
    }

    @Test
    void aGatewayThatIsAwayIsNoAnswerAndAnotherOneTakesOver() throws Exception {
        String away = Fake.nobody();
        Gateway alone = new Gateway(open(options().endpoints(away)));
        WindfallException error = failed(() -> alone.sendBonus(REWARD));
        assertEquals(Kind.UNANSWERED, error.kind());
        assertTrue(error.isWorthRetrying());
        Gateway gateway = new Gateway(open(options().endpoints(away, fake.endpoint())));
        for (int nth = 0; nth < 6; nth++) {
            gateway.sendBonus(REWARD);
        }
        assertEquals(6, fake.calls());
        // Where there was no connection, nothing was sent, and the refusal stands.
        Gateway other = new Gateway(open(options().endpoints(away, fake.endpoint())));
        fake.say(said(Code.FAILED_PRECONDITION));
        assertEquals(Kind.NO_ROUTE, failed(() -> other.sendBonus(REWARD)).kind());
    }

    @Test
    void largeBatchesGoInPartsAndComeBackInOrder() throws Exception {
        SendBonusFailure failure =
                SendBonusFailure.newBuilder().setCode(Code.FAILED_PRECONDITION.value()).setRetryable(true).build();
        fake.batch = requests -> SendBonusBatchReply.newBuilder()
                .addAllResults(requests.getRequestsList().stream()
                        .map(request -> request.getTradeNo().equals("order-700")
                                ? SendBonusResult.newBuilder().setFailure(failure).build()
                                : SendBonusResult.newBuilder().setToken(request.getTradeNo()).build())
                        .toList())
                .build();
        Gateway gateway = new Gateway(open(options()));
        List<Sent> answers = gateway.sendBonusBatch(requests(1_300, ""));
        assertEquals(1_300, answers.size());
        assertEquals(3, fake.calls());
        for (int nth = 0; nth < 1_300; nth++) {
            Sent answer = answers.get(nth);
            if (nth == 700) {
                assertEquals(Kind.NO_ROUTE, answer.error().kind());
            } else {
                assertEquals("order-" + nth, answer.token());
                assertNull(answer.error());
            }
        }
        assertEquals(List.of(), gateway.sendBonusBatch(List.of()));
        // Fat ones, too: 300 of 10 KiB.
        fake.say();
        assertEquals(300, gateway.sendBonusBatch(requests(300, "v".repeat(10_240))).size());
        assertEquals(3, fake.calls());
        // What is refused after an attempt was lost may have been taken by that one.
        fake.say(said(Code.RESOURCE_EXHAUSTED), said(Code.UNAVAILABLE));
        List<Sent> doubtful = gateway.sendBonusBatch(requests(701, "").subList(700, 701));
        assertEquals(Kind.UNANSWERED, doubtful.get(0).error().kind());
    }

    private static List<SendBonusRequest> requests(int count, String filling) {
        return IntStream.range(0, count)
                .mapToObj(nth -> SendBonusRequest.newBuilder()
                        .setTradeNo("order-" + nth)
                        .putExtension("k", filling)
                        .build())
                .toList();
    }

    @Test
    void aTimerWithoutAKeyIsNotAddedTwice() throws Exception {
        Timers timers = new Timers(open(options()));
        NewTimer timer = NewTimer.newBuilder().setTarget("hook").build();
        fake.say(said(Code.UNAVAILABLE));
        AddTimerRequest nameless = AddTimerRequest.newBuilder().setTimer(timer).build();
        assertEquals(Kind.UNANSWERED, failed(() -> timers.add(nameless)).kind());
        assertEquals(1, fake.calls());
        fake.say(said(Code.UNAVAILABLE));
        timers.add(AddTimerRequest.newBuilder().setTimer(timer.toBuilder().setKey("call-1")).build());
        assertEquals(2, fake.calls());
    }

    @Test
    void theKeyAndTheUserGoWithTheCallAndAreNotShown() throws Exception {
        String secret = "wfk_not-a-real-key";
        String assertion = "eyJhbGciOi.a-users.assertion";
        Wallet wallet = new Wallet(open(options().bearerKey(secret)));
        wallet.get(EndUser.signed(assertion), GetWalletRequest.getDefaultInstance());
        wallet.get(EndUser.named(42), GetWalletRequest.getDefaultInstance());
        assertEquals(assertion, header(0, "x-windfall-user-token"));
        assertNull(header(0, "x-windfall-user"));
        assertEquals("42", header(1, "x-windfall-user"));
        assertEquals("Bearer " + secret, header(1, "authorization"));
        assertFalse(options().bearerKey(secret).build().toString().contains(secret));
        assertFalse(EndUser.signed(assertion).toString().contains(assertion));
        GetWalletRequest request = GetWalletRequest.getDefaultInstance();
        assertEquals(Kind.REFUSED, failed(() -> wallet.get(EndUser.signed("a\nb"), request)).kind());
        assertEquals(2, fake.calls());
        IllegalArgumentException wrong =
                assertThrows(IllegalArgumentException.class, () -> options().bearerKey(secret + "\n").build());
        assertFalse(wrong.getMessage().contains(secret));
    }

    private String header(int call, String name) {
        return fake.head(call).get(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER));
    }

    @Test
    void optionsThatCannotBeAreRefused() throws Exception {
        List<Options.Builder> bad = List.of(
                Options.builder().endpoints(), Options.builder().attempts(0), Options.builder().attempts(11),
                Options.builder().attemptTimeout(Duration.ZERO), Options.builder().connectTimeout(Duration.ofHours(1)),
                at("http://10.0.0.7:7070"), at("https://10.0.0.7:7070"), at("ftp://127.0.0.1"), at("127.0.0.1:7070"),
                at("no address"), at(""));
        for (Options.Builder options : bad) {
            assertThrows(IllegalArgumentException.class, () -> open(options));
        }
        List<Options.Builder> good = List.of(
                Options.builder(), at("http://[::1]:7070"), at("http://localhost:7070"),
                at("http://10.0.0.7:7070").keyInPlainText(true));
        for (Options.Builder options : good) {
            open(options);
        }
        Options.Builder missing = at("https://10.0.0.7:7070").caFile(new java.io.File("none.pem"));
        assertThrows(IOException.class, () -> open(missing));
    }

    private static Options.Builder at(String endpoint) {
        return Options.builder().endpoints(endpoint).bearerKey("key");
    }
}
