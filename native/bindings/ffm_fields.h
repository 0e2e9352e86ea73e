// Checks the fields of examples before a Deep FFM scores them; shared by the bindings of the engine and of requests.
#pragma once
#include "core/ffm/engine.h"

// Throws an error of Python's ValueError where an example has a field that is none of the model's, or one of the other
// part of a request: of the context or of the candidates.
void check_fields(const cb::DeepFfm& model, const cb::Examples& examples, bool of_context);
