/* libctrbox: scores of a Deep FFM from any language that can call C.
 *
 *   ctrbox_scorer* scorer = NULL;
 *   if (ctrbox_scorer_open("request.ctr", "served.fbw", &scorer) != CTRBOX_OK) { puts(ctrbox_last_error()); return 1; }
 *   ctrbox_scorer_json(scorer, body, bytes, scores, capacity, &rows);
 *   ctrbox_scorer_close(scorer);
 *
 * A scorer takes raw columns: it has the plan that makes features of them (ctrbox publish request-plan) and a model. A
 * model alone takes features whose keys the caller computes (ctrbox_open). A model is a published weight file
 * (cb.publish.pack) or a saved Deep FFM (engine.save). Scores are probabilities. For the same rows, or the same
 * features, they have the same bits as engine.predict in Python.
 *
 * Errors. A function that can fail returns a ctrbox_status. If it is not CTRBOX_OK, ctrbox_last_error() returns a
 * sentence that says what is wrong, and the outputs of the function must not be used. NULL, wrong sizes, damaged files
 * and numbers that are not finite are reported by a status and never crash the caller. A pointer must be NULL or point
 * to as many elements as its count says; the library cannot check that.
 *
 * Threads. Any number of threads may use one model or one scorer at the same time, because an open one never changes.
 * Do not close it while another thread uses it; the library cannot detect that. Each thread has its own
 * ctrbox_last_error(). A call runs in the calling thread alone.
 *
 * Memory. All arrays belong to the caller; the library reads them only during the call. The library owns models,
 * contexts and scorers; the caller frees them with ctrbox_close, ctrbox_context_free and ctrbox_scorer_close.
 *
 * The header is plain C99. Numbers of statuses never change their meaning, new ones are only added: a program that was
 * built for CTRBOX_ABI 1 works with every library whose ctrbox_abi() returns 1. */
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
  CTRBOX_BAD_ARGUMENT = 1, /* NULL, an unknown field, descending offsets, a value that is not finite */
  CTRBOX_CANNOT_READ = 2,  /* no such file, no right to read it, a failing disk */
  CTRBOX_DAMAGED = 3,      /* not a file of CTRBox, or one that is cut off, changed or inconsistent */
  CTRBOX_WRONG_BASE = 4,   /* a patch that was made for another file */
  CTRBOX_TOO_LARGE = 5,    /* the result of a patch exceeds the limit, or no memory for the model */
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

/* Opens a model; *model is NULL after a failure. */
CTRBOX_API ctrbox_status ctrbox_open(const char* path, ctrbox_model** model);
CTRBOX_API void ctrbox_close(ctrbox_model* model); /* NULL is fine */

CTRBOX_API uint32_t ctrbox_fields(const ctrbox_model* model); /* 0 for NULL */
/* Returns the name of a field, terminated by a zero byte, and stores its length in *bytes unless `bytes` is NULL.
 * Returns NULL if the model has no such field. The name is valid until the model is closed. */
CTRBOX_API const char* ctrbox_field_name(const ctrbox_model* model, uint32_t field, size_t* bytes);
/* Stores the number of the field with this name. */
CTRBOX_API ctrbox_status ctrbox_field(const ctrbox_model* model, const char* name, size_t bytes, uint32_t* field);
CTRBOX_API uint64_t ctrbox_learned(const ctrbox_model* model); /* examples the model has learned from */

/* ---- from values to keys ----------------------------------------------------------------------------------------- */

/* A feature consists of a field, a key and a value. Which of these functions makes the key depends on what the model
 * was trained on. */

/* Text of Vowpal Wabbit or libffm: `name` is the name of the feature, such as "u1" in "|user u1:0.5". */
CTRBOX_API ctrbox_status ctrbox_key_of_text(const ctrbox_model* model, uint32_t field, const void* name, size_t bytes,
                                            uint64_t* key);
/* A plan with sparse={"user": col("user_id").key()}, if the column holds strings: `value` is the string. */
CTRBOX_API ctrbox_status ctrbox_key_of_string(const ctrbox_model* model, uint32_t field, const void* value,
                                              size_t bytes, uint64_t* key);
/* The same, if the column holds integers. */
CTRBOX_API ctrbox_status ctrbox_key_of_int(const ctrbox_model* model, uint32_t field, int64_t value, uint64_t* key);
/* A key that a plan has made, as in batch.sparse["user"].values. The key 0 stands for null and is refused. */
CTRBOX_API ctrbox_status ctrbox_key_of_key(const ctrbox_model* model, uint32_t field, uint64_t plan_key, uint64_t* key);
/* A dense column of a plan: it is one feature, and the number of the column is its value. */
CTRBOX_API ctrbox_status ctrbox_key_of_dense(const ctrbox_model* model, uint32_t field, uint64_t* key);

/* The key of a hashed interaction, which has a field of its own. `keys` are the keys of its features, in the order of
 * the fields that it names. There is one such feature for each combination; its value is the product of their values.
 */
CTRBOX_API ctrbox_status ctrbox_key_of_interaction(const ctrbox_model* model, uint32_t field, const uint64_t* keys,
                                                   size_t count, uint64_t* key);

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Several examples, one after the other. Example e has the features from offsets[e] up to, but not including,
 * offsets[e + 1]. Fields may come in any order and have any number of features; an example has at most 65,535. */
typedef struct ctrbox_examples {
  size_t rows;
  const uint64_t* offsets; /* rows + 1 numbers; offsets[0] is 0; may be NULL if rows is 0 */
  const uint32_t* fields;  /* fields, keys and values have offsets[rows] elements each */
  const uint64_t* keys;
  const float* values; /* NULL: all values are 1; a feature with value 0 is ignored */
} ctrbox_examples;

/* Writes one score for each example to scores[0] ... scores[rows - 1]. */
CTRBOX_API ctrbox_status ctrbox_score(const ctrbox_model* model, const ctrbox_examples* examples, float* scores);

/* A request has one context and many candidates. The first ctrbox_context_fields(model) fields belong to the context
 * (cb.DeepFFM(..., context=...)), the others to the candidates. The part of a score that depends only on the context is
 * computed once; scores have the same bits as those of ctrbox_score for whole examples. A context belongs to its model
 * and may be used for any number of requests and by any number of threads at once. Free it before you close its model.
 */
typedef struct ctrbox_context ctrbox_context;

CTRBOX_API uint32_t ctrbox_context_fields(const ctrbox_model* model); /* 0: the model was made without a context */
/* `example` must have one row with fields of the context only. *context is NULL after a failure. */
CTRBOX_API ctrbox_status ctrbox_context_make(const ctrbox_model* model, const ctrbox_examples* example,
                                             ctrbox_context** context);
CTRBOX_API void ctrbox_context_free(ctrbox_context* context);          /* NULL is fine */
CTRBOX_API size_t ctrbox_context_bytes(const ctrbox_context* context); /* memory it takes, for a cache; 0 for NULL */
/* Writes one score for each candidate. Candidates must have no field of the context. */
CTRBOX_API ctrbox_status ctrbox_context_score(const ctrbox_model* model, const ctrbox_context* context,
                                              const ctrbox_examples* candidates, float* scores);

/* ---- raw columns in, scores out ---------------------------------------------------------------------------------- */

/* A plan for requests (ctrbox publish request-plan MODEL -o request.ctr) with the weights of a model. Joined views are
 * in the file, with the rows that they had when it was written. */
typedef struct ctrbox_scorer ctrbox_scorer;

/* Opens the plan and the weights. *scorer is NULL after a failure. CTRBOX_BAD_ARGUMENT: the model has a field that is
 * not a feature of the plan. A file that an attacker has made can make a request slow or use much memory, but cannot
 * do anything else. */
CTRBOX_API ctrbox_status ctrbox_scorer_open(const char* plan, const char* weights, ctrbox_scorer** scorer);
/* Opens other weights, such as those of a new version, for the plan of an open scorer. Both scorers then share the plan
 * in memory, and either may be closed first. */
CTRBOX_API ctrbox_status ctrbox_scorer_with(const ctrbox_scorer* of, const char* weights, ctrbox_scorer** scorer);
CTRBOX_API void ctrbox_scorer_close(ctrbox_scorer* scorer); /* NULL is fine */

/* Scores a request, which is the JSON that POST /v1/score takes, in UTF-8 and without a zero byte behind it:
 *
 *   {"context": {"user_id": 7}, "candidates": [{"ad_id": 1}, {"ad_id": 2}]}     or "candidates": {"ad_id": [1, 2]}
 *
 * Every column that the plan reads must be there, with a value of its own kind or null; a wrong kind is an error.
 * Stores the number of candidates in *rows and a score for each in scores[0] ... scores[*rows - 1]; NaN for a candidate
 * that a filter of the plan drops. If `capacity`, the number of floats at `scores`, is smaller, nothing is scored: the
 * status is CTRBOX_BAD_ARGUMENT, and *rows says how many are needed. A request has at most 1 GiB and 16,777,216
 * candidates. Unlike the server, the library takes no objects, no score expressions and no names of columns with
 * escapes, and all candidates must have the same columns in the same order. */
CTRBOX_API ctrbox_status ctrbox_scorer_json(const ctrbox_scorer* scorer, const void* body, size_t bytes, float* scores,
                                            size_t capacity, size_t* rows);

/* The columns that a request must bring: those of the context (of_context: 1) and those of each candidate (0). */
CTRBOX_API uint32_t ctrbox_scorer_columns(const ctrbox_scorer* scorer, int32_t of_context); /* 0 for NULL */
/* Returns the name of a column, valid until the scorer is closed, and stores its kind in *kind unless `kind` is NULL:
 * 'b' a truth value, 'i' a whole number, 'f' a number, 's' a string, 't' a time. NULL if there is no such column. */
CTRBOX_API const char* ctrbox_scorer_column(const ctrbox_scorer* scorer, int32_t of_context, uint32_t column,
                                            char* kind);
CTRBOX_API uint64_t ctrbox_scorer_learned(const ctrbox_scorer* scorer); /* examples the model has learned from */
/* Returns plan.fingerprint of the plan, valid until the scorer is closed; NULL for NULL. */
CTRBOX_API const char* ctrbox_scorer_fingerprint(const ctrbox_scorer* scorer);

/* ---- updates ----------------------------------------------------------------------------------------------------- */

/* Applies a patch (cb.publish.diff) to the file `base` and writes the new file to `result`, which may be `base` itself.
 * The new file is written under another name, synced and renamed, so that whoever opens `result` finds the old file or
 * the new one. Refuses a damaged patch, a patch for another base, and a patch whose result has more than `most_bytes`
 * bytes (0: twice the size of the base, or 1 GiB more than it). Models that are open do not change; open `result` to
 * use the new one. */
CTRBOX_API ctrbox_status ctrbox_apply_patch(const char* base, const char* patch, const char* result,
                                            uint64_t most_bytes);

#ifdef __cplusplus
}
#endif

#endif /* CTRBOX_H */
