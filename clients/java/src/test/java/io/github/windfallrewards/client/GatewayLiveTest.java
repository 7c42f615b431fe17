package io.github.windfallrewards.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import io.github.windfallrewards.client.Gateway.Sent;
import io.github.windfallrewards.client.WindfallException.Kind;
import io.github.windfallrewards.v1.AcknowledgePayoutRequest;
import io.github.windfallrewards.v1.AddTimerReply;
import io.github.windfallrewards.v1.AddTimerRequest;
import io.github.windfallrewards.v1.BonusToken;
import io.github.windfallrewards.v1.CancelTimerRequest;
import io.github.windfallrewards.v1.GetTimerRequest;
import io.github.windfallrewards.v1.GetWalletRequest;
import io.github.windfallrewards.v1.ListTimersReply;
import io.github.windfallrewards.v1.ListTimersRequest;
import io.github.windfallrewards.v1.NewTimer;
import io.github.windfallrewards.v1.PayoutResult;
import io.github.windfallrewards.v1.SendBonusRequest;
import io.github.windfallrewards.v1.TimerChange;
import io.github.windfallrewards.v1.TimersGrpc;
import io.github.windfallrewards.v1.TokenVerdict;
import io.github.windfallrewards.v1.User;
import io.github.windfallrewards.v1.VerifiedToken;
import io.github.windfallrewards.v1.WalletBalance;
import io.github.windfallrewards.v1.WithdrawOutcome;
import io.github.windfallrewards.v1.WithdrawReply;
import io.github.windfallrewards.v1.WithdrawRequest;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

@EnabledIfEnvironmentVariable(
        named = "WINDFALL_GATEWAY", matches = ".+", disabledReason = "no gateway runs; clients/with-gateway starts one")
class GatewayLiveTest {
    private static final long OWN_USER = 3_001;
    /** The tests of every language send this user the same order. */
    private static final long SHARED_USER = 7_777;

    private final List<Connection> connections = new ArrayList<>();

    /** Opens a connection with one of the keys of the gateway that clients/with-gateway started. */
    private Connection open(String keyName) throws IOException {
        Connection connection = Connection.open(Options.builder()
                .endpoints(System.getenv("WINDFALL_GATEWAY"))
                .bearerKey(System.getenv(keyName))
                .attemptTimeout(Duration.ofSeconds(20))
                .connectTimeout(Duration.ofSeconds(20))
                .build());
        connections.add(connection);
        return connection;
    }

    @AfterEach
    void close() {
        connections.forEach(Connection::close);
    }

    /** Waits until the user's balance of cash is this. The bound is for a machine that is very busy. */
    private void untilCredited(long userId, long wanted) throws Exception {
        Wallet wallet = new Wallet(open("WINDFALL_WALLET_KEY"));
        Instant end = Instant.now().plusSeconds(60);
        while (Instant.now().isBefore(end)) {
            List<WalletBalance> balances =
                    wallet.get(EndUser.named(userId), GetWalletRequest.getDefaultInstance()).getBalancesList();
            long credited = balances.isEmpty() ? 0 : balances.get(0).getCredited();
            assertTrue(credited <= wanted, "credited " + credited);
            if (credited == wanted && balances.get(0).getPending() == 0) {
                return;
            }
            Thread.sleep(50);
        }
        throw new AssertionError("user " + userId + " does not have " + wanted + " after a minute");
    }

    @Test
    void aRewardThatIsSentAgainIsCreditedOnceAndPaidOutOnce() throws Exception {
        Gateway gateway = new Gateway(open("WINDFALL_ACTIVITY_KEY"));
        RedPacketRain rain = new RedPacketRain(gateway, "java-2027", "cash");
        User user = User.newBuilder().setUserId(OWN_USER).build();
        Prize prize = new Prize(888, "red packet");
        String text = rain.send(1, user, 0, prize);
        // Again alone, and in a batch beside one that is wrong.
        rain.send(1, user, 0, prize);
        SendBonusRequest wrong = rain.request(1, user, 1, new Prize(0, ""));
        List<Sent> answers = gateway.sendBonusBatch(List.of(rain.request(1, user, 0, prize), wrong));
        assertFalse(answers.get(0).token().isEmpty());
        assertEquals(Kind.REFUSED, answers.get(1).error().kind());

        TokenVerifier verifier = TokenVerifier.load(Path.of(System.getenv("WINDFALL_VERIFIER_FILE")), "windfall");
        BonusToken opened = verifier.open(text, OWN_USER);
        assertEquals("java-2027/rain/0000000001/cash/3001/0", opened.getTradeNo());
        assertEquals(888, opened.getAmount());
        assertThrows(IllegalTokenException.class, () -> verifier.open(text, OWN_USER + 1));
        untilCredited(OWN_USER, 888);

        Tokens tokens = new Tokens(open("WINDFALL_WALLET_KEY"));
        List<VerifiedToken> judged = tokens.verify(EndUser.named(OWN_USER), List.of(text, "AQAA"));
        assertNotEquals(TokenVerdict.TOKEN_VERDICT_ILLEGAL, judged.get(0).getVerdict());
        assertEquals(TokenVerdict.TOKEN_VERDICT_ILLEGAL, judged.get(1).getVerdict());
        Payouts payouts = new Payouts(open("WINDFALL_PAYOUTS_KEY"));
        AcknowledgePayoutRequest done = AcknowledgePayoutRequest.newBuilder()
                .setUserId(OWN_USER)
                .setWithdrawalId("java-1")
                .setResult(PayoutResult.PAYOUT_RESULT_PAID)
                .build();
        for (WithdrawOutcome outcome : List.of(
                WithdrawOutcome.WITHDRAW_OUTCOME_TO_PAY_OUT, WithdrawOutcome.WITHDRAW_OUTCOME_PAID_OUT)) {
            WithdrawReply reply = withdraw("java-1", 800);
            assertEquals(outcome, reply.getOutcome());
            assertEquals(88, reply.getBalance());
            boolean isFirst = outcome == WithdrawOutcome.WITHDRAW_OUTCOME_TO_PAY_OUT;
            assertEquals(isFirst, payouts.acknowledge(done));
        }
        assertEquals(Kind.TOO_LITTLE, assertThrows(WindfallException.class, () -> withdraw("java-2", 800)).kind());
        assertEquals(Kind.TAKEN, assertThrows(WindfallException.class, () -> withdraw("java-1", 8)).kind());
    }

    private WithdrawReply withdraw(String id, long amount) throws IOException {
        WithdrawRequest request =
                WithdrawRequest.newBuilder().setWithdrawalId(id).setBonusType("cash").setAmount(amount).build();
        return new Wallet(open("WINDFALL_WALLET_KEY")).withdraw(EndUser.named(OWN_USER), request);
    }

    /** The order numbers of the languages and of HTTP are one, so that the reward is one, whoever sends it. */
    @Test
    void aRewardOfSeveralLanguagesIsCreditedOnce() throws Exception {
        CardDraw draw = new CardDraw(new Gateway(open("WINDFALL_ACTIVITY_KEY")), "shared-2027", "cash");
        draw.send(15, User.newBuilder().setUserId(SHARED_USER).build(), 3, new Prize(100, "a card"));
        String body = """
                {"trade_no": "shared-2027/draw/0000000015/cash/7777/3", "user": {"user_id": 7777}, "activity": "shared-2027",
                 "scene": "card-draw", "bonus": {"type": "cash", "amount": 100}}
                """;
        HttpRequest request = HttpRequest.newBuilder(URI.create(System.getenv("WINDFALL_GATEWAY") + "/v1/bonuses/send"))
                .version(HttpClient.Version.HTTP_1_1)
                .header("content-type", "application/json")
                .header("authorization", "Bearer " + System.getenv("WINDFALL_ACTIVITY_KEY"))
                .POST(HttpRequest.BodyPublishers.ofString(body))
                .build();
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        assertEquals(200, answer.statusCode(), answer.body());
        untilCredited(SHARED_USER, 100);
    }

    @Test
    void aKeyWithoutTheRoleIsDenied() throws Exception {
        Gateway gateway = new Gateway(open("WINDFALL_WALLET_KEY"));
        WindfallException error = assertThrows(
                WindfallException.class, () -> gateway.sendBonus(SendBonusRequest.getDefaultInstance()));
        assertEquals(Kind.REFUSED, error.kind());
        assertFalse(error.isWorthRetrying());
        Wallet wallet = new Wallet(open("WINDFALL_ACTIVITY_KEY"));
        error = assertThrows(WindfallException.class,
                () -> wallet.get(EndUser.named(OWN_USER), GetWalletRequest.getDefaultInstance()));
        assertEquals(Kind.DENIED, error.kind());
    }

    @Test
    void aTimerWithAKeyIsAddedOnce() throws Exception {
        Connection connection = open("WINDFALL_SCHEDULER_KEY");
        Timers timers = new Timers(connection);
        NewTimer timer = NewTimer.newBuilder()
                .setTarget("rewards")
                .setDueMs(Instant.now().plusSeconds(3_600).toEpochMilli())
                .setKey("java-1")
                .setPayload(ByteString.copyFromUtf8("{}"))
                .build();
        AddTimerRequest add = AddTimerRequest.newBuilder().setTimer(timer).build();
        AddTimerReply first = timers.add(add);
        AddTimerReply again = timers.add(add);
        assertTrue(again.getExisted());
        assertEquals(first.getId(), again.getId());
        GetTimerRequest get = GetTimerRequest.newBuilder().setId(first.getId()).build();
        assertEquals(timer.getDueMs(), timers.get(get).getDueMs());
        // A call that has no method here.
        ListTimersReply listed = connection.call(
                TimersGrpc.getListMethod(), ListTimersRequest.getDefaultInstance(), Repeat.SAFE, null);
        assertTrue(listed.getTimersCount() > 0);
        CancelTimerRequest cancel = CancelTimerRequest.newBuilder().setId(first.getId()).build();
        assertEquals(TimerChange.TIMER_CHANGE_DONE, timers.cancel(cancel).getChange());
    }
}
