// Computes the metrics of progressive validation: log loss and AUC.
//
// They are computed while other threads learn, so they must take little of a core: about 15 ns per example.
#pragma once
#include <cstddef>

namespace cb {

// Sums over examples. Predictions are clipped to [clip, 1 - clip]; a label above one half is a click.
struct ValidationSums {
  double loss = 0.0, predicted = 0.0;
};
ValidationSums validation_sums(const float* labels, const float* predictions, size_t count, double clip);

// Returns the share of pairs (click, no click) that are in the right order, where ties count half, or NaN where there
// is no pair. Predictions lie between 0 and 1; there are at most 2^26 of them, so that every sum is exact.
double auc_of(const float* labels, const float* predictions, size_t count);

}  // namespace cb
