/* Scores of lines by a model of CTRBox, from C:
 *
 *   make -C examples/c                          # with libctrbox installed; docs/c_abi.md
 *   echo '|user u1 |ad a7 b2:0.5' | ./score served.fbw
 *
 * A line has namespaces, which are the model's fields, each with names and behind a colon their values, as Vowpal
 * Wabbit writes them; a label before the first bar is not looked at. One probability a line. Lines are gathered and
 * scored together, as a server would do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctrbox.h"

enum { TOGETHER = 64, MOST_FEATURES = 4096, LONGEST = 1 << 16 };

static uint64_t offsets[TOGETHER + 1], keys[MOST_FEATURES];
static uint32_t fields[MOST_FEATURES];
static float values[MOST_FEATURES];
static size_t rows;

static int failed(const char* what) {
  fprintf(stderr, "score: %s: %s\n", what, ctrbox_last_error());
  return 1;
}

static int score_all(const ctrbox_model* model) {
  const ctrbox_examples examples = {rows, offsets, fields, keys, values};
  float scores[TOGETHER];
  size_t e;
  if (ctrbox_score(model, &examples, scores) != CTRBOX_OK) return failed("scores");
  for (e = 0; e < rows; ++e) printf("%.9g\n", (double)scores[e]); /* nine digits are a float, to the bit */
  rows = 0;
  return 0;
}

static int add_line(const ctrbox_model* model, char* line) {
  uint64_t at = offsets[rows];
  uint32_t field = 0;
  int in_field = 0;
  char* word;
  for (word = strtok(line, " \t\r\n"); word; word = strtok(NULL, " \t\r\n")) {
    char* colon = strchr(word, ':');
    size_t length = colon ? (size_t)(colon - word) : strlen(word);
    if (*word == '|') {
      if (ctrbox_field(model, word + 1, length - 1, &field) != CTRBOX_OK) return failed(word);
      in_field = 1;
      continue;
    }
    if (!in_field) continue;
    if (at == MOST_FEATURES) {
      fprintf(stderr, "score: more than %d features in %d lines\n", MOST_FEATURES, TOGETHER);
      return 1;
    }
    if (ctrbox_key_of_text(model, field, word, length, &keys[at]) != CTRBOX_OK) return failed(word);
    fields[at] = field;
    values[at++] = colon ? strtof(colon + 1, NULL) : 1.0f;
  }
  offsets[++rows] = at;
  return 0;
}

int main(int argc, char** argv) {
  static char line[LONGEST];
  ctrbox_model* model = NULL;
  int wrong = 0;
  if (argc != 2) {
    fprintf(stderr, "usage: %s MODEL < lines; libctrbox %s\n", argv[0], ctrbox_version());
    return 2;
  }
  if (ctrbox_abi() != CTRBOX_ABI) {
    fprintf(stderr, "score: built for ABI %d of libctrbox, found %d\n", CTRBOX_ABI, (int)ctrbox_abi());
    return 2;
  }
  if (ctrbox_open(argv[1], &model) != CTRBOX_OK) return failed("model");
  while (!wrong && fgets(line, sizeof line, stdin)) {
    wrong = add_line(model, line);
    if (!wrong && rows == TOGETHER) wrong = score_all(model);
  }
  if (!wrong && rows) wrong = score_all(model);
  ctrbox_close(model);
  return wrong;
}
