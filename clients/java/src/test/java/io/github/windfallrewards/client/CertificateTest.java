package io.github.windfallrewards.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.windfallrewards.client.WindfallException.Kind;
import io.github.windfallrewards.v1.SendBonusReply;
import io.github.windfallrewards.v1.SendBonusRequest;
import io.grpc.ServerCredentials;
import io.grpc.TlsServerCredentials;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class CertificateTest {
    private static final Duration LONG = Duration.ofSeconds(20);

    @BeforeAll
    static void opensslMakesTheCertificates() throws Exception {
        boolean isInstalled;
        try {
            isInstalled = new ProcessBuilder("openssl", "version").start().waitFor() == 0;
        } catch (IOException error) {
            isInstalled = false;
        }
        assumeTrue(isInstalled, "openssl, which makes the certificates, is not installed");
    }

    @Test
    void aCertificateIsAsGoodAsAKeyAndStrangersAreNotTrusted(@TempDir Path own, @TempDir Path stranger) throws Exception {
        authority(own);
        authority(stranger);
        issue(own, "gateway.test");
        issue(own, "rain.test");
        ServerCredentials credentials = TlsServerCredentials.newBuilder()
                .keyManager(file(own, "gateway.test.pem"), file(own, "gateway.test.key"))
                .trustManager(file(own, "ca.pem"))
                .clientAuth(TlsServerCredentials.ClientAuth.REQUIRE)
                .build();
        try (Fake fake = new Fake(credentials)) {
            assertEquals("token", send(known(fake, own)).getToken());
            for (Options.Builder options : List.of(
                    known(fake, own).caFile(file(stranger, "ca.pem")),
                    known(fake, own).serverName("another.test"),
                    known(fake, own).clientCertificate(null, null))) {
                WindfallException error = assertThrows(WindfallException.class, () -> send(options));
                assertEquals(Kind.UNANSWERED, error.kind());
            }
            assertEquals(1, fake.calls());
        }
    }

    private static Options.Builder known(Fake fake, Path own) {
        return Options.builder()
                .endpoints(fake.endpoint().replace("http:", "https:"))
                .caFile(file(own, "ca.pem"))
                .clientCertificate(file(own, "rain.test.pem"), file(own, "rain.test.key"))
                .serverName("gateway.test")
                .attempts(1)
                .attemptTimeout(LONG)
                .connectTimeout(LONG);
    }

    private static SendBonusReply send(Options.Builder options) throws IOException {
        try (Connection connection = Connection.open(options.build())) {
            return new Gateway(connection).sendBonus(SendBonusRequest.getDefaultInstance());
        }
    }

    private static void authority(Path folder) throws Exception {
        openssl(folder, "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 2 -subj /CN=test"
                + " -addext keyUsage=keyCertSign -keyout ca.key -out ca.pem");
    }

    /** Writes NAME.pem and NAME.key. */
    private static void issue(Path folder, String name) throws Exception {
        Files.writeString(folder.resolve("names"), "subjectAltName=DNS:" + name);
        openssl(folder, "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=" + name
                + " -keyout " + name + ".key -out " + name + ".csr");
        openssl(folder, "x509 -req -in " + name + ".csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out "
                + name + ".pem");
    }

    private static void openssl(Path folder, String words) throws Exception {
        List<String> command = new ArrayList<>(List.of("openssl"));
        command.addAll(List.of(words.split(" ")));
        File said = file(folder, "openssl.log");
        Process process = new ProcessBuilder(command)
                .directory(folder.toFile())
                .redirectErrorStream(true)
                .redirectOutput(said)
                .start();
        assertEquals(0, process.waitFor(), () -> words + ": see " + said);
    }

    private static File file(Path folder, String name) {
        return folder.resolve(name).toFile();
    }
}
