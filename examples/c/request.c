/* Scores of requests by a published Deep FFM and its plan, from C: raw columns in, probabilities out.
 *
 *   ctrbox publish request-plan model/ -o request.ctr
 *   make -C examples/c request                                 # with libctrbox installed; docs/publishing/c_abi.md
 *   ./request request.ctr model/weights/versions/00000001.fbw < requests.jsonl
 *
 * Each line is a request, as POST /v1/score takes it: {"context": {...}, "candidates": [...]}. For each the program
 * prints a line with the scores of its candidates; "nan" is a candidate that a filter of the plan drops. Without a
 * request it prints the columns that a request must bring. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctrbox.h"

enum { MOST = 4096 }; /* candidates of a request */

static int failed(const char* what) {
  fprintf(stderr, "request: %s: %s\n", what, ctrbox_last_error());
  return 1;
}

static void describe(const ctrbox_scorer* scorer, int32_t of_context) {
  uint32_t k;
  for (k = 0; k < ctrbox_scorer_columns(scorer, of_context); ++k) {
    char kind = 0;
    const char* name = ctrbox_scorer_column(scorer, of_context, k, &kind);
    fprintf(stderr, "%s %c %s\n", of_context ? "context  " : "candidate", kind, name);
  }
}

/* Reads a line of any length into *line, without its end; returns its bytes, or -1 at the end of the input. */
static long next_line(char** line, size_t* room) {
  size_t n = 0;
  int c = 0;
  while ((c = getchar()) != EOF && c != '\n') {
    if (n + 1 >= *room) {
      char* more = realloc(*line, *room * 2);
      if (!more) exit(1);
      *line = more;
      *room *= 2;
    }
    (*line)[n++] = (char)c;
  }
  return c == EOF && n == 0 ? -1 : (long)n;
}

int main(int argc, char** argv) {
  static float scores[MOST];
  ctrbox_scorer* scorer = NULL;
  size_t room = 1 << 16, rows = 0, k, requests = 0;
  char* line = malloc(room);
  long bytes;
  int wrong = 0;
  if (argc != 3 || !line) {
    fprintf(stderr, "usage: %s REQUEST_PLAN WEIGHTS < requests.jsonl; libctrbox %s\n", argv[0], ctrbox_version());
    return 2;
  }
  if (ctrbox_scorer_open(argv[1], argv[2], &scorer) != CTRBOX_OK) return failed("model");
  while (!wrong && (bytes = next_line(&line, &room)) >= 0) {
    ++requests;
    wrong = ctrbox_scorer_json(scorer, line, (size_t)bytes, scores, MOST, &rows) != CTRBOX_OK;
    for (k = 0; !wrong && k < rows; ++k) printf(k ? " %.9g" : "%.9g", (double)scores[k]); /* to the bit */
    if (!wrong) printf("\n");
  }
  if (wrong) wrong = failed("scores");
  if (!requests) {
    describe(scorer, 1);
    describe(scorer, 0);
  }
  ctrbox_scorer_close(scorer);
  free(line);
  return wrong;
}
