import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.StringJoiner;

/**
 * Scores of requests by a published Deep FFM and its plan, from Java: raw columns in, probabilities out.
 *
 * <pre>
 *   ctrbox publish request-plan model/ -o request.ctr
 *   make -C examples/java                                      # with libctrbox installed; docs/publishing/c_abi.md
 *   java -Djava.library.path=. -cp . Scorer request.ctr model/weights/versions/00000001.fbw &lt; requests.jsonl
 * </pre>
 *
 * Each line is a request, as POST /v1/score takes it; for each a line with the scores of its candidates is printed. Any
 * number of threads may call {@link #scores} at once. The native part is scorer_jni.c.
 */
public final class Scorer implements AutoCloseable {
  static {
    System.loadLibrary("ctrbox_scorer_jni");
  }

  private long handle; // 0: closed

  public Scorer(String plan, String weights) {
    handle = open(plan.getBytes(StandardCharsets.UTF_8), weights.getBytes(StandardCharsets.UTF_8));
  }

  /** Returns a probability for each candidate of a request, NaN where a filter of the plan drops it. */
  public float[] scores(byte[] body) {
    if (handle == 0) throw new IllegalStateException("the scorer is closed");
    return score(handle, body);
  }

  /** Closes the scorer. Do not call it while another thread scores. */
  @Override
  public void close() {
    if (handle != 0) close(handle);
    handle = 0;
  }

  // Each throws IllegalArgumentException with the sentence of libctrbox.
  private static native long open(byte[] plan, byte[] weights);

  private static native float[] score(long handle, byte[] body);

  private static native void close(long handle);

  public static void main(String[] given) throws IOException {
    if (given.length != 2) {
      System.err.println("usage: java Scorer REQUEST_PLAN WEIGHTS < requests.jsonl");
      System.exit(2);
    }
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    try (Scorer scorer = new Scorer(given[0], given[1])) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        StringJoiner out = new StringJoiner(" ");
        for (float score : scorer.scores(line.getBytes(StandardCharsets.UTF_8))) {
          out.add(Float.isNaN(score) ? "nan" : Float.toString(score));
        }
        System.out.println(out);
      }
    } catch (IllegalArgumentException error) {
      System.err.println("request: " + error.getMessage());
      System.exit(1);
    }
  }
}
