package io.github.windfallrewards.client;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.MessageDigest;
import java.security.PublicKey;
import java.security.spec.X509EncodedKeySpec;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A key of a verifier's copy of the key ring. One that is pending or destroyed opens nothing, and both of its parts are null.
 *
 * @param seal the key of XAES-256-GCM
 * @param signer the key of Ed25519
 */
record VerifierKey(byte[] seal, PublicKey signer) {
    private static final String TITLE =
            "# Windfall key ring. It holds secrets: chmod 600, and change it with `windfall keys` alone.";
    private static final String FORMAT = "1";
    private static final Pattern VALUE = Pattern.compile("([a-z_]+) = \"?([^\"]*)\"?");
    private static final int KEY_BYTES = 32;
    /** What stands before the bytes of an Ed25519 key in X.509 (RFC 8410). */
    private static final byte[] X509_ED25519 = HexFormat.of().parseHex("302a300506032b6570032100");

    /** Reads the text of a verifier's copy, and checks it as a whole. */
    static Map<Long, VerifierKey> parse(String text) throws KeyFileException {
        String[] lines = text.split("\n", 4);
        if (!lines[0].equals(TITLE) || lines.length < 4) {
            throw KeyFileException.damaged("the first lines are not those of a key ring");
        }
        if (!lines[1].matches("format = [0-9]+")) {
            throw KeyFileException.damaged("no format number");
        }
        if (!lines[1].equals("format = " + FORMAT)) {
            throw new KeyFileException("the key file has a newer " + lines[1] + "; use a newer release");
        }
        String body = lines[3];
        if (!lines[2].equals("digest = \"" + digestOf(body) + "\"")) {
            throw KeyFileException.damaged("it is not what its digest says: cut or altered");
        }
        Map<Long, VerifierKey> keys = new HashMap<>();
        String[] tables = body.split("\\[\\[key]]\n");
        long last = 0;
        for (String table : Arrays.asList(tables).subList(1, tables.length)) {
            Map<String, String> values = valuesOf(table);
            long id = idOf(values);
            if (id <= last) {
                throw KeyFileException.damaged("key numbers out of order");
            }
            last = id;
            keys.put(id, of(id, values));
        }
        if (keys.isEmpty()) {
            throw KeyFileException.damaged("no key");
        }
        return keys;
    }

    /** Reads a key's table, as `windfall keys` writes it: a line for each value. */
    private static Map<String, String> valuesOf(String table) throws KeyFileException {
        Map<String, String> values = new HashMap<>();
        for (String line : table.split("\n")) {
            Matcher parts = VALUE.matcher(line);
            if (!line.isEmpty() && (!parts.matches() || values.put(parts.group(1), parts.group(2)) != null)) {
                throw KeyFileException.damaged("a line that is no value");
            }
        }
        return values;
    }

    private static long idOf(Map<String, String> values) throws KeyFileException {
        String id = values.getOrDefault("id", "");
        if (!id.matches("[1-9][0-9]{0,9}")) {
            throw KeyFileException.damaged("a key without a number");
        }
        return Long.parseLong(id);
    }

    private static VerifierKey of(long id, Map<String, String> values) throws KeyFileException {
        if (values.containsKey("signing_secret")) {
            throw new KeyFileException("key " + id + " has its signing secret, with which tokens can be made; "
                    + "verifiers need a copy without it: windfall keys export-verifier");
        }
        String state = values.getOrDefault("state", "");
        if (state.equals("pending") || state.equals("destroyed")) {
            return new VerifierKey(null, null);
        }
        if (!state.equals("primary") && !state.equals("verify-only") || !"ed25519".equals(values.get("algorithm"))) {
            throw KeyFileException.damaged("a key that does not verify");
        }
        byte[] point = secretOf(values.get("public_key"));
        byte[] encoded = Arrays.copyOf(X509_ED25519, X509_ED25519.length + KEY_BYTES);
        System.arraycopy(point, 0, encoded, X509_ED25519.length, KEY_BYTES);
        try {
            PublicKey signer = KeyFactory.getInstance("Ed25519").generatePublic(new X509EncodedKeySpec(encoded));
            return new VerifierKey(secretOf(values.get("seal_secret")), signer);
        } catch (GeneralSecurityException error) {
            throw KeyFileException.damaged("a public key that is none");
        }
    }

    private static byte[] secretOf(String text) throws KeyFileException {
        try {
            byte[] bytes = Base64.getDecoder().decode(text == null ? "" : text);
            if (bytes.length == KEY_BYTES && Base64.getEncoder().encodeToString(bytes).equals(text)) {
                return bytes;
            }
        } catch (IllegalArgumentException error) {
            // The message names no content: it may be a secret.
        }
        throw KeyFileException.damaged("a key that is not base64 of 32 bytes");
    }

    private static String digestOf(String body) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            return Base64.getEncoder().encodeToString(digest.digest(body.getBytes(StandardCharsets.UTF_8)));
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("every Java has SHA-256", error);
        }
    }
}
