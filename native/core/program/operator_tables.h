// Builds the tables of is_in, bucketize and json from plain values; after that they are only read.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/program/kernel_shapes.h"
#include "core/program/operator_table.h"
#include "operators/json.h"
#include "operators/sets.h"

namespace cb {

// A set of int or time values.
class IntSet : public Table {
 public:
  explicit IntSet(const std::vector<int64_t>& members);
  const void* view() const override { return &view_; }
  size_t bytes() const override { return slots_.size() * sizeof(int64_t); }

 protected:
  void put_image(ImageWriter& to) const override;
  IntSet(std::vector<int64_t> members, int64_t empty);

 private:
  std::vector<int64_t> slots_;
  IntSetView view_;
};

// NaN is left out: it equals nothing.
class FloatSet : public IntSet {
 public:
  explicit FloatSet(const std::vector<double>& members);
};

class StrSet : public Table {
 public:
  explicit StrSet(const std::vector<std::string>& members);
  const void* view() const override { return &view_; }
  size_t bytes() const override { return slots_.size() * sizeof(StrSlot) + bytes_.size(); }

 protected:
  void put_image(ImageWriter& to) const override;

 private:
  std::vector<StrSlot> slots_;
  std::string bytes_;
  StrSetView view_;
};

// Throws std::invalid_argument unless ascending (equal neighbors are fine) and free of NaN.
class Boundaries : public Table {
 public:
  explicit Boundaries(std::vector<double> boundaries);
  const void* view() const override { return &view_; }
  size_t bytes() const override { return boundaries_.size() * sizeof(double); }

 protected:
  void put_image(ImageWriter& to) const override;

 private:
  std::vector<double> boundaries_;
  BoundariesView view_;
};

// Up to 32 paths with the kind of each: s, i, f, b, *s, *i, *f. Syntax: $ then any of .name ['name'] ["name"]
// [3]. A dotted name is letters, digits, _, - and anything beyond ASCII. Throws std::invalid_argument with
// the position.
class JsonPaths : public Table {
 public:
  JsonPaths(const std::vector<std::string>& paths, const std::vector<std::string>& kinds);
  const void* view() const override { return &view_; }
  const std::vector<std::string>& paths() const { return paths_; }
  const std::vector<std::string>& result_kinds() const { return result_kinds_; }
  size_t bytes() const override;

 protected:
  void put_image(ImageWriter& to) const override;

 private:
  std::vector<std::string> paths_, result_kinds_;  // as they were given
  std::vector<JsonNode> nodes_;
  std::vector<JsonEdge> edges_;
  std::string keys_;
  std::vector<uint8_t> kinds_;
  JsonPathsView view_;
};

// The JSON line of the catalogue; the other families are declared in kernel_shapes.h.
void add_json(Catalogue&);

}  // namespace cb
