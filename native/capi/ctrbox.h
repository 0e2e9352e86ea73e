/* libctrbox: scores of a Deep FFM from any language that can call C.
 *
 *   ctrbox_model* model = NULL;
 *   if (ctrbox_open("served.fbw", &model) != CTRBOX_OK) { puts(ctrbox_last_error()); return 1; }
 *   ...
 *   ctrbox_close(model);
 *
 * A model is a published weight file (cb.publish.pack) or a saved Deep FFM (engine.save). Scores are probabilities and
 * have the bits of engine.predict in Python for the same features.
 *
 * Errors. A function that can fail returns a ctrbox_status; anything but CTRBOX_OK has a sentence in
 * ctrbox_last_error(), and what it should have written means nothing. No input crashes the caller: NULL, wrong sizes,
 * damaged files and numbers that are not finite give a status. Pointers must be NULL or point at as many elements as
 * their count says; nobody can check that.
 *
 * Threads. Any number of threads may call with one model at once: nothing changes a model once it is open. Closing it
 * while another thread uses it is an error that nobody can see. ctrbox_last_error() is the calling thread's own.
 *
 * Memory. All arrays belong to the caller and are read before the call returns. Handles belong to the library and are
 * given back by ctrbox_close and ctrbox_context_free.
 *
 * Plain C99. The numbers below only grow: a program built for CTRBOX_ABI 1 works with every library that answers 1. */
#ifndef CTRBOX_H
#define CTRBOX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CTRBOX_ABI 1
#define CTRBOX_VERSION "0.2.0"

#if defined(__GNUC__)
#define CTRBOX_API __attribute__((visibility("default")))
#else
#define CTRBOX_API
#endif

typedef int32_t ctrbox_status;
enum {
  CTRBOX_OK = 0,
  CTRBOX_BAD_ARGUMENT = 1, /* NULL, a field the model has not, offsets that fall, a value that is not finite */
  CTRBOX_CANNOT_READ = 2,  /* no such file, no right to read it, a failing disk */
  CTRBOX_DAMAGED = 3,      /* not a file of ours, cut, flipped, or one that contradicts itself */
  CTRBOX_WRONG_BASE = 4,   /* a patch that was made for another file */
  CTRBOX_TOO_LARGE = 5,    /* a patch whose result is beyond the limit, or no memory for the model */
  CTRBOX_CANNOT_WRITE = 6, /* a full disk, no right to write; the previous file is unchanged */
  CTRBOX_NOT_FINITE = 7,   /* a score is not finite: weights or values are too large */
  CTRBOX_UNSUPPORTED = 8,  /* built without zstd: patches cannot be applied */
  CTRBOX_FAILED = 9        /* anything else; the sentence says what */
};

typedef struct ctrbox_model ctrbox_model;

/* ---- about ------------------------------------------------------------------------------------------------------- */

CTRBOX_API int32_t ctrbox_abi(void);            /* CTRBOX_ABI of the library, to compare with the header's */
CTRBOX_API const char* ctrbox_version(void);    /* CTRBOX_VERSION of the library */
CTRBOX_API const char* ctrbox_last_error(void); /* of this thread's last failed call; "" where none failed */

/* ---- a model ----------------------------------------------------------------------------------------------------- */

/* *model is NULL after a failure. */
CTRBOX_API ctrbox_status ctrbox_open(const char* path, ctrbox_model** model);
CTRBOX_API void ctrbox_close(ctrbox_model* model); /* NULL is fine */

CTRBOX_API uint32_t ctrbox_fields(const ctrbox_model* model); /* 0 for NULL */
/* The name of a field, ended by a zero byte, and its length where `bytes` is not NULL; NULL for a field the model has
 * not. Valid until the model is closed. */
CTRBOX_API const char* ctrbox_field_name(const ctrbox_model* model, uint32_t field, size_t* bytes);
/* The number of the field of a name. */
CTRBOX_API ctrbox_status ctrbox_field(const ctrbox_model* model, const char* name, size_t bytes, uint32_t* field);
CTRBOX_API uint64_t ctrbox_learned(const ctrbox_model* model); /* examples the model has learned from */

/* ---- from values to keys ----------------------------------------------------------------------------------------- */

/* A feature is a field, a key and a value. The key depends on how the model was trained: */

/* on text of Vowpal Wabbit or libffm: `name` is the feature's name in its namespace or field, "u1" of "|user u1:0.5" */
CTRBOX_API ctrbox_status ctrbox_key_of_text(const ctrbox_model* model, uint32_t field, const void* name, size_t bytes,
                                            uint64_t* key);
/* on a plan, sparse={"user": col("user_id").key()}: the column's string, */
CTRBOX_API ctrbox_status ctrbox_key_of_string(const ctrbox_model* model, uint32_t field, const void* value,
                                              size_t bytes, uint64_t* key);
/* or its integer, */
CTRBOX_API ctrbox_status ctrbox_key_of_int(const ctrbox_model* model, uint32_t field, int64_t value, uint64_t* key);
/* or a key that a plan made, as in batch.sparse["user"].values; 0, a plan's null, has no feature and is refused, */
CTRBOX_API ctrbox_status ctrbox_key_of_key(const ctrbox_model* model, uint32_t field, uint64_t plan_key, uint64_t* key);
/* or a dense column: one feature, whose value is the number. */
CTRBOX_API ctrbox_status ctrbox_key_of_dense(const ctrbox_model* model, uint32_t field, uint64_t* key);

/* The key of a hashed interaction in its own field: of the keys of its features, in the order of the fields it names.
 * Its value is the product of theirs; a feature for each combination. */
CTRBOX_API ctrbox_status ctrbox_key_of_interaction(const ctrbox_model* model, uint32_t field, const uint64_t* keys,
                                                   size_t count, uint64_t* key);

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Examples one behind the other. Example e has the features offsets[e] up to offsets[e + 1]; fields in any order, any
 * number of features for a field, at most 65,535 for an example. */
typedef struct ctrbox_examples {
  size_t rows;
  const uint64_t* offsets; /* rows + 1; offsets[0] is 0; may be NULL where rows is 0 */
  const uint32_t* fields;  /* offsets[rows] each */
  const uint64_t* keys;
  const float* values; /* NULL: all 1; a value of 0 is not a feature */
} ctrbox_examples;

/* One score for each example into scores[0] ... scores[rows - 1]. */
CTRBOX_API ctrbox_status ctrbox_score(const ctrbox_model* model, const ctrbox_examples* examples, float* scores);

/* A request has one context and many candidates: the first ctrbox_context_fields(model) fields are the context's
 * (cb.DeepFFM(..., context=...)), the others the candidates'. What the context's fields say among themselves is worked
 * out once; scores have the bits of ctrbox_score of whole examples. A context belongs to its model, may be used for any
 * number of requests and by any number of threads at once, and is freed before its model is closed. */
typedef struct ctrbox_context ctrbox_context;

CTRBOX_API uint32_t ctrbox_context_fields(const ctrbox_model* model); /* 0: the model was made without a context */
/* `example` has one row, of fields of the context. *context is NULL after a failure. */
CTRBOX_API ctrbox_status ctrbox_context_make(const ctrbox_model* model, const ctrbox_examples* example,
                                             ctrbox_context** context);
CTRBOX_API void ctrbox_context_free(ctrbox_context* context);          /* NULL is fine */
CTRBOX_API size_t ctrbox_context_bytes(const ctrbox_context* context); /* memory it takes, for a cache; 0 for NULL */
/* One score for each candidate; candidates have no field of the context. */
CTRBOX_API ctrbox_status ctrbox_context_score(const ctrbox_model* model, const ctrbox_context* context,
                                              const ctrbox_examples* candidates, float* scores);

/* ---- updates ----------------------------------------------------------------------------------------------------- */

/* What a patch (cb.publish.diff) makes of `base`, written to `result`, which may be `base` itself: aside, synced,
 * renamed, so whoever opens `result` finds the old file or the new one. Refused: a damaged patch, one for another base,
 * one whose result has more than `most_bytes` (0: twice the base, or 1 GiB more than it). Models that are open are as
 * they were; open `result` for the new one. */
CTRBOX_API ctrbox_status ctrbox_apply_patch(const char* base, const char* patch, const char* result,
                                            uint64_t most_bytes);

#ifdef __cplusplus
}
#endif

#endif /* CTRBOX_H */
