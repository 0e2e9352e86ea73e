// Counts what the casts and JSON paths of a program could not convert, so that a null that they made is never silent.
//
// The engine calls count() after the kernel of a cast, with its input and its result. The counting reads the validity
// bytes of both once: about 0.1 ns a row beside some ten of the cast itself. The JSON kernel calls count_value() for
// each value that it finds, because only it knows a value of another type from one that is missing.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/program/kernel_shapes.h"

namespace cb {

// How an instruction loses values. Text and Number: a value that is not null becomes null. Lists: elements are left
// out. Times: nothing is lost, but whole numbers that count another unit than was said give times that cannot be meant.
// Json: a value has another type than the path's result, or a list has elements of another type.
enum class Conversion : uint8_t { None, Text, Number, Quotient, Lists, Times, Json };

// The number of results that an instruction with so many results counts conversions of.
inline size_t counted(Conversion how, size_t results) {
  return how == Conversion::None ? 0 : how == Conversion::Json ? results : 1;
}

// Counts of the values that one instruction has read and lost so far; for Json, of the values at one path.
struct Converted {
  uint64_t values = 0;  // rows that are not null
  uint64_t lost = 0;    // those among them that became null, or whose list lost an element
  uint64_t early = 0;   // Times: in January 1970
  uint64_t late = 0;    // Times: in the year 2200 or later
  // The first value lost, at most kExample bytes of it; Times: the first time, in microseconds.
  std::optional<std::string> example;

  static constexpr size_t kExample = 100;

  void count(Conversion how, uint32_t rows, const Column& in, const Column& out);
  // Counts one value that is not null. `text` shows what was lost, if `whole` is false.
  void count_value(bool whole, Str text) {
    ++values;
    if (whole) return;
    if (!lost++) example = std::string(text.p, text.n < kExample ? text.n : kExample);
  }
  void add(const Converted& other);
};

Conversion conversion_of(const std::string& name, const std::string& args);

}  // namespace cb
