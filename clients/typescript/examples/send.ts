/**
 * Sends a reward through a gateway and shows the user's proof:
 *
 *     npm run build && node dist/examples/send.js http://127.0.0.1:8080 KEY
 */
import { setTimeout as sleep } from "node:timers/promises";
import { Connection, Gateway, isWorthRetrying, RedPacketRain, WindfallError } from "../src/index.js";

/**
 * Sends packet 0 that the user takes in round 1. While the answer is "unknown" or "not now" it sends the same order again, which
 * credits once.
 */
async function giveRedPacket(rain: RedPacketRain, userId: bigint): Promise<string> {
  const signal = AbortSignal.timeout(10_000);
  for (;;) {
    try {
      return await rain.send(1, { userId }, 0, { amount: 888n, description: "red packet" }, { signal });
    } catch (error) {
      if (!isWorthRetrying(error) || signal.aborted) {
        throw error;
      }
      await sleep(Math.max(100, error instanceof WindfallError ? error.retryAfterMs : 0));
    }
  }
}

const [endpoint, bearerKey] = process.argv.slice(2);
if (endpoint === undefined || bearerKey === undefined) {
  console.error("give the gateway's address and a key of the role send");
  process.exit(2);
}
const connection = new Connection({ endpoints: [endpoint], bearerKey });
try {
  const rain = new RedPacketRain(new Gateway(connection), "spring-2027", "cash");
  console.log("the user's proof:", await giveRedPacket(rain, 42n));
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
} finally {
  connection.close();
}
