package io.github.windfallrewards.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import io.github.windfallrewards.v1.Bonus;
import io.github.windfallrewards.v1.SendBonusReply;
import io.github.windfallrewards.v1.SendBonusRequest;
import io.github.windfallrewards.v1.User;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.junit.jupiter.api.Test;

class SceneTest {
    private final List<SendBonusRequest> sent = new ArrayList<>();
    private final Sender sender = request -> {
        sent.add(request);
        return SendBonusReply.newBuilder().setToken("token of " + request.getTradeNo()).build();
    };

    private Scene scene(String name, String activity, String bonusType) {
        return switch (name) {
            case "red-packet-rain" -> new RedPacketRain(sender, activity, bonusType);
            case "card-draw" -> new CardDraw(sender, activity, bonusType);
            default -> new Fireworks(sender, activity, bonusType);
        };
    }

    @Test
    void orderNumbersAreThoseOfTheDocumentation() throws Exception {
        JsonArray vectors = Documents.read("order-numbers.json").getAsJsonArray();
        assertTrue(vectors.size() >= 5);
        Locale own = Locale.getDefault();
        // A language with digits of its own must not change a number.
        Locale.setDefault(Locale.forLanguageTag("ar-EG-u-nu-arab"));
        try {
            for (JsonElement element : vectors) {
                check(element.getAsJsonObject());
            }
        } finally {
            Locale.setDefault(own);
        }
    }

    private void check(JsonObject vector) {
        String name = vector.get("scene").getAsString();
        String activity = vector.get("activity").getAsString();
        String bonusType = vector.get("bonus_type").getAsString();
        long round = vector.get("round").getAsLong();
        long number = vector.get("number").getAsLong();
        User user = User.newBuilder().setUserId(vector.get("user_id").getAsLong()).setDeviceId("phone").build();
        String tradeNo = vector.get("trade_no").getAsString();

        Scene scene = scene(name, activity, bonusType);
        assertEquals(tradeNo, scene.tradeNo(round, user.getUserId(), number));
        sent.clear();
        assertEquals("token of " + tradeNo, scene.send(round, user, number, new Prize(7, "for you")));
        Bonus bonus = Bonus.newBuilder().setType(bonusType).setAmount(7).setDescription("for you").build();
        SendBonusRequest expected = SendBonusRequest.newBuilder()
                .setTradeNo(tradeNo).setUser(user).setActivity(activity).setScene(name).setBonus(bonus).build();
        assertEquals(List.of(expected), sent);
    }

    @Test
    void namesAndNumbersWithWhichAnOrderNumberCouldBeRefusedAreRefused() {
        String[][] wrongNames = {
            {"", "cash"}, {"a b", "cash"}, {"a\n", "cash"}, {"红包", "cash"}, {"a".repeat(65), "cash"}, {"a", ""}, {"a", "Cash"},
            {"a", "cash\n"}, {"a", "c".repeat(33)}, {"a".repeat(64), "c".repeat(32)},
        };
        for (String[] names : wrongNames) {
            assertThrows(IllegalArgumentException.class, () -> new RedPacketRain(sender, names[0], names[1]));
        }
        Scene rain = new RedPacketRain(sender, "a".repeat(64), "cash");
        for (long wrong : new long[] {-1, 1L << 32}) {
            assertThrows(IllegalArgumentException.class, () -> rain.tradeNo(wrong, 1, 0));
            assertThrows(IllegalArgumentException.class, () -> rain.tradeNo(0, 1, wrong));
        }
        for (long wrong : new long[] {0, -1, Long.MIN_VALUE}) {
            assertThrows(IllegalArgumentException.class, () -> rain.tradeNo(0, wrong, 0));
        }
    }
}
