/* Scores of lines by a model of CTRBox, from C:
 *
 *   make -C examples/c                          # with libctrbox installed; docs/publishing/c_abi.md
 *   echo '|user u1 |ad a7 b2:0.5' | ./score served.fbw
 *   echo '|user 17 |query shoes |price :0.5' | ./score model.ffm user=int query=string price=dense
 *
 * A line has namespaces, which are the model's fields, each with names and behind a colon their values, as Vowpal
 * Wabbit writes them; a label before the first bar is not looked at. One probability a line. Lines are gathered and
 * scored together, as a server would do.
 *
 * A key is made as the model learned it. One that learned from such lines takes the names as they are: `text`, unless
 * told. One that learned through a plan has columns: of whole numbers, `int`; of strings, `string`; dense ones, whose
 * number is the value behind the colon, `dense`. With the wrong kind every key is one the model has never met. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctrbox.h"

enum { TOGETHER = 64, MOST_FEATURES = 4096, LONGEST = 1 << 16 };

static uint64_t offsets[TOGETHER + 1], keys[MOST_FEATURES];
static uint32_t fields[MOST_FEATURES];
static float values[MOST_FEATURES];
static size_t rows;

enum { MOST_FIELDS = 512, KINDS = 4 }; /* 512: the most a model has */
enum { TEXT, STRING, INT, DENSE };
static const char* const kinds[KINDS] = {"text", "string", "int", "dense"};
static int kind_of[MOST_FIELDS]; /* TEXT, unless told */

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

/* "user=int" */
static int take_kind(const ctrbox_model* model, const char* given) {
  const char* equals = strchr(given, '=');
  uint32_t field;
  int k;
  if (equals && ctrbox_field(model, given, (size_t)(equals - given), &field) != CTRBOX_OK) return failed(given);
  for (k = 0; equals && k < KINDS; ++k) {
    if (strcmp(equals + 1, kinds[k]) == 0) {
      kind_of[field] = k;
      return 0;
    }
  }
  fprintf(stderr, "score: %s: expected FIELD=text, string, int or dense\n", given);
  return 1;
}

static int key_of(const ctrbox_model* model, uint32_t field, const char* name, size_t bytes, uint64_t* key) {
  ctrbox_status status;
  if (kind_of[field] == INT) {
    char* end;
    long long number;
    errno = 0;
    number = strtoll(name, &end, 10);
    if (errno || !bytes || end != name + bytes) {
      fprintf(stderr, "score: %.*s: expected a whole number\n", (int)bytes, name);
      return 1;
    }
    status = ctrbox_key_of_int(model, field, number, key);
  } else if (kind_of[field] == DENSE) {
    status = ctrbox_key_of_dense(model, field, key);
  } else if (kind_of[field] == STRING) {
    status = ctrbox_key_of_string(model, field, name, bytes, key);
  } else {
    status = ctrbox_key_of_text(model, field, name, bytes, key);
  }
  return status == CTRBOX_OK ? 0 : failed(name);
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
    if (key_of(model, field, word, length, &keys[at])) return 1;
    if (kind_of[field] == DENSE && !colon) {
      fprintf(stderr, "score: %s: the number of a dense field stands behind a colon, as in :0.5\n", word);
      return 1;
    }
    fields[at] = field;
    values[at++] = colon ? strtof(colon + 1, NULL) : 1.0f;
  }
  offsets[++rows] = at;
  return 0;
}

int main(int argc, char** argv) {
  static char line[LONGEST];
  ctrbox_model* model = NULL;
  int wrong = 0, a;
  if (argc < 2) {
    fprintf(stderr, "usage: %s MODEL [FIELD=text|string|int|dense]... < lines; libctrbox %s\n", argv[0],
            ctrbox_version());
    return 2;
  }
  if (ctrbox_abi() != CTRBOX_ABI) {
    fprintf(stderr, "score: built for ABI %d of libctrbox, found %d\n", CTRBOX_ABI, (int)ctrbox_abi());
    return 2;
  }
  if (ctrbox_open(argv[1], &model) != CTRBOX_OK) return failed("model");
  for (a = 2; a < argc && !wrong; ++a) wrong = take_kind(model, argv[a]);
  while (!wrong && fgets(line, sizeof line, stdin)) {
    wrong = add_line(model, line);
    if (!wrong && rows == TOGETHER) wrong = score_all(model);
  }
  if (!wrong && rows) wrong = score_all(model);
  ctrbox_close(model);
  return wrong;
}
