/* The native part of Scorer.java: hands arrays of Java to libctrbox, and its errors back as exceptions. */
#include <jni.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ctrbox.h"

enum { MOST = 4096 }; /* candidates of a request */

static void throw_text(JNIEnv* env, const char* text) {
  jclass type = (*env)->FindClass(env, "java/lang/IllegalArgumentException");
  if (type) (*env)->ThrowNew(env, type, text);
}

/* A copy of the bytes with a zero behind them, for the caller to free; NULL after an exception. */
static char* copy_of(JNIEnv* env, jbyteArray bytes, size_t* count) {
  jsize n = (*env)->GetArrayLength(env, bytes);
  char* copy = malloc((size_t)n + 1);
  if (!copy) {
    throw_text(env, "no memory");
    return NULL;
  }
  (*env)->GetByteArrayRegion(env, bytes, 0, n, (jbyte*)copy);
  copy[n] = 0;
  if (count) *count = (size_t)n;
  return copy;
}

JNIEXPORT jlong JNICALL Java_Scorer_open(JNIEnv* env, jclass of, jbyteArray plan, jbyteArray weights) {
  ctrbox_scorer* scorer = NULL;
  char* plan_path = copy_of(env, plan, NULL);
  char* weights_path = plan_path ? copy_of(env, weights, NULL) : NULL;
  (void)of;
  if (weights_path && ctrbox_scorer_open(plan_path, weights_path, &scorer) != CTRBOX_OK)
    throw_text(env, ctrbox_last_error());
  free(plan_path);
  free(weights_path);
  return (jlong)(intptr_t)scorer;
}

JNIEXPORT jfloatArray JNICALL Java_Scorer_score(JNIEnv* env, jclass of, jlong handle, jbyteArray body) {
  float scores[MOST];
  size_t bytes = 0, rows = 0;
  ctrbox_status status;
  jfloatArray out;
  char* copy = copy_of(env, body, &bytes);
  (void)of;
  if (!copy) return NULL;
  status = ctrbox_scorer_json((const ctrbox_scorer*)(intptr_t)handle, copy, bytes, scores, MOST, &rows);
  free(copy);
  if (status != CTRBOX_OK) {
    throw_text(env, ctrbox_last_error());
    return NULL;
  }
  out = (*env)->NewFloatArray(env, (jsize)rows);
  if (out) (*env)->SetFloatArrayRegion(env, out, 0, (jsize)rows, scores);
  return out;
}

JNIEXPORT void JNICALL Java_Scorer_close(JNIEnv* env, jclass of, jlong handle) {
  (void)env;
  (void)of;
  ctrbox_scorer_close((ctrbox_scorer*)(intptr_t)handle);
}
