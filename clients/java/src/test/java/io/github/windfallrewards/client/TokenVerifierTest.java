package io.github.windfallrewards.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import io.github.windfallrewards.v1.BonusToken;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class TokenVerifierTest {
    private JsonObject known;
    private String file;
    private TokenVerifier verifier;

    @BeforeEach
    void load() throws IOException {
        known = Documents.read("token-vectors.json").getAsJsonObject();
        StringBuilder lines = new StringBuilder();
        known.getAsJsonArray("verifier_file").forEach(line -> lines.append(line.getAsString()).append('\n'));
        file = lines.toString();
        verifier = TokenVerifier.parse(file, known.get("tenant").getAsString());
    }

    @Test
    void tokensAreJudgedAsWindfallJudgesThem() throws Exception {
        for (JsonElement element : known.getAsJsonArray("tokens")) {
            JsonObject vector = element.getAsJsonObject();
            String what = vector.get("what").getAsString();
            String text = vector.get("token").getAsString();
            long userId = vector.get("user_id").getAsLong();
            if (!vector.has("content")) {
                assertThrows(IllegalTokenException.class, () -> verifier.open(text, userId), what);
                continue;
            }
            BonusToken said = verifier.open(text, userId);
            Map<String, Object> fields = Map.of(
                    "trade_no", said.getTradeNo(), "user_id", said.getUserId(), "app_id", said.getAppId(),
                    "activity", said.getActivity(), "scene", said.getScene(), "bonus_type", said.getBonusType(),
                    "amount", said.getAmount(), "award_time_ms", said.getAwardTimeMs(), "description", said.getDescription());
            fields.forEach((name, value) ->
                    assertEquals(vector.getAsJsonObject("content").get(name).getAsString(), value.toString(), what));
        }
    }

    @Test
    void everyFlippedBitEveryOtherLengthAndEveryOtherTenantIsIllegal() throws Exception {
        JsonObject first = known.getAsJsonArray("tokens").get(0).getAsJsonObject();
        String text = first.get("token").getAsString();
        long owner = first.get("user_id").getAsLong();
        byte[] raw = Base64.getUrlDecoder().decode(text);
        for (int bit = 0; bit < raw.length * 8; bit++) {
            byte[] other = raw.clone();
            other[bit / 8] ^= (byte) (1 << bit % 8);
            String flipped = Base64.getUrlEncoder().withoutPadding().encodeToString(other);
            assertThrows(IllegalTokenException.class, () -> verifier.open(flipped, owner), "bit " + bit);
        }
        for (int length = 0; length < text.length(); length++) {
            String cut = text.substring(0, length);
            assertThrows(IllegalTokenException.class, () -> verifier.open(cut, owner), cut);
        }
        for (String tenant : new String[] {"", "Windfall", "windfal", "windfall2", "windfall\0"}) {
            TokenVerifier other = TokenVerifier.parse(file, tenant);
            assertThrows(IllegalTokenException.class, () -> other.open(text, owner), tenant);
        }
    }

    @Test
    void aKeyFileThatIsDamagedOrCouldMintIsRefused(@TempDir Path folder) throws Exception {
        String[] wrong = {
            "", file.substring(0, file.length() - 1), file.replaceFirst("verify-only", "primary"),
            file.replaceFirst("Windfall", "windfall"), file.replaceFirst("format = 1", "format = 2"),
        };
        for (String text : wrong) {
            assertThrows(KeyFileException.class, () -> TokenVerifier.parse(text, "windfall"));
        }
        String mints = withBody("\n[[key]]\nid = 1\nalgorithm = \"ed25519\"\nstate = \"primary\"\nsigning_secret = \"AAAA\"\n");
        KeyFileException refused = assertThrows(KeyFileException.class, () -> TokenVerifier.parse(mints, "windfall"));
        assertTrue(refused.getMessage().contains("export-verifier"), refused.getMessage());

        Path path = folder.resolve("verifier.toml");
        Files.writeString(path, file);
        Files.setPosixFilePermissions(path, PosixFilePermissions.fromString("rw-r--r--"));
        refused = assertThrows(KeyFileException.class, () -> TokenVerifier.load(path, "windfall"));
        assertTrue(refused.getMessage().contains("chmod 600"), refused.getMessage());
        Files.setPosixFilePermissions(path, PosixFilePermissions.fromString("rw-------"));
        TokenVerifier.load(path, "windfall");
        assertThrows(IOException.class, () -> TokenVerifier.load(folder.resolve("none.toml"), "windfall"));
    }

    /** A key file with this body and its digest. */
    private String withBody(String body) throws Exception {
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(body.getBytes(StandardCharsets.UTF_8));
        String[] head = Arrays.copyOf(file.split("\n"), 2);
        return String.join("\n", head) + "\ndigest = \"" + Base64.getEncoder().encodeToString(digest) + "\"\n" + body;
    }

    /** Both vectors of https://c2sp.org/XAES-256-GCM; the top bit of the first block is 0 in the first and 1 in the second. */
    @Test
    void xaesGivesThePublishedResults() throws Exception {
        Object[][] vectors = {
            {1, "", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"},
            {3, "c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"},
        };
        for (Object[] vector : vectors) {
            byte[] secret = new byte[32];
            Arrays.fill(secret, ((Integer) vector[0]).byteValue());
            byte[] sealed = HexFormat.of().parseHex((String) vector[2]);
            byte[] plain = Seal.open(secret, "ABCDEFGHIJKLMNOPQRSTUVWX".getBytes(StandardCharsets.US_ASCII), sealed,
                    ((String) vector[1]).getBytes(StandardCharsets.US_ASCII));
            assertArrayEquals("XAES-256-GCM".getBytes(StandardCharsets.US_ASCII), plain);
        }
    }
}
