import com.xxl.job.core.context.XxlJobHelper;
import com.xxl.job.core.executor.impl.XxlJobSimpleExecutor;
import com.xxl.job.core.handler.annotation.XxlJob;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/**
 * An executor of XXL-JOB for jobs/tests/java, which runs this file with the jars of each generation:
 * {@code java -cp 'jars/*' InteropExecutor.java ADMIN_URL APP TOKEN PORT LOG_FOLDER}. It ends in order at the end of
 * its standard input.
 */
public final class InteropExecutor {
    /** The handlers of its jobs. */
    public static final class Handlers {
        /** Writes its parameter to its log, and answers with it. */
        @XxlJob("echo")
        public void echo() {
            XxlJobHelper.log("the parameter is {}", XxlJobHelper.getJobParam());
            XxlJobHelper.handleSuccess("echo: " + XxlJobHelper.getJobParam());
        }

        /** Sleeps for so many milliseconds. */
        @XxlJob("slow")
        public void slow() throws InterruptedException {
            Thread.sleep(Long.parseLong(XxlJobHelper.getJobParam()));
        }

        /** Waits until there is a file of this path, and answers with the times at which it began and ended. */
        @XxlJob("gate")
        public void gate() throws InterruptedException {
            long began = System.nanoTime();
            Path gate = Path.of(XxlJobHelper.getJobParam());
            XxlJobHelper.log("waits for {}", gate);
            while (!Files.exists(gate)) {
                Thread.sleep(20);
            }
            XxlJobHelper.handleSuccess(began + " " + System.nanoTime());
        }

        /** Says that it failed. */
        @XxlJob("fail")
        public void fail() {
            XxlJobHelper.handleFail("failed as asked");
        }

        /** Throws. */
        @XxlJob("throw")
        public void throwing() {
            throw new IllegalStateException("thrown as asked");
        }

        /** Answers with a number that is none of the protocol's. */
        @XxlJob("code")
        public void code() {
            XxlJobHelper.handleResult(300, "as asked");
        }

        /** Answers with its place in the broadcast. */
        @XxlJob("shard")
        public void shard() {
            XxlJobHelper.handleSuccess(XxlJobHelper.getShardIndex() + " of " + XxlJobHelper.getShardTotal());
        }
    }

    private InteropExecutor() {}

    public static void main(String[] args) throws Exception {
        XxlJobSimpleExecutor executor = new XxlJobSimpleExecutor();
        executor.setAdminAddresses(args[0]);
        executor.setAppname(args[1]);
        executor.setAccessToken(args[2]);
        executor.setIp("127.0.0.1");
        executor.setPort(Integer.parseInt(args[3]));
        executor.setLogPath(args[4]);
        executor.setLogRetentionDays(7);
        executor.setXxlJobBeanList(List.of(new Handlers()));
        executor.start();
        while (System.in.read() >= 0) {
            // Until the test closes it, or has died.
        }
        executor.destroy();
        System.exit(0);
    }
}
