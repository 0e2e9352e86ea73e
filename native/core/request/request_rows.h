// Parses the candidates of a request, or its context, from the bytes of its JSON directly into a frame.
//
//   {"context": {…}, "candidates": [{"ad_id": 1, …}, …]}      or  "candidates": {"ad_id": [1, …], …}
//
// This is the fast path of ctrbox/serve/request.py. What it accepts, it reads with the same result as the slow path
// there. It leaves everything else (another type, a missing column, bytes that are not UTF-8) and all errors to the
// slow path, which makes the messages. libctrbox has no slow path: it asks `why` a request was not taken. `read` only
// finds where the context begins and ends; if the context is not in the cache, a second reader with the columns of the
// context reads it by `row`. The bytes are not trusted: memory grows only with what was read.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/program/frame.h"

namespace cb {

class RequestRows {
 public:
  struct Column {
    std::string name;
    char kind;                  // b i f s t
    int64_t low = 0, high = 0;  // of kind i, and of the numbers of kind t
    bool single = false;        // of kind f: the log holds float32
    int64_t unit = 0;           // of kind t: microseconds of one unit of a number; 0: a time must be a text
  };
  struct Read {
    size_t context_begin = 0, context_end = 0;  // the object's braces included; equal: there is none
    int64_t rows = 0;
    std::shared_ptr<Frame> frame;
  };

  // ignored: columns of the log that may come and are not read. most: rows beyond which a request is left to others.
  RequestRows(std::vector<Column> columns, std::vector<std::string> ignored, int64_t most);

  // `why`: what says, if the request is not taken, what was met and where; nullptr: nobody asks.
  std::optional<Read> read(std::string_view body, std::string* why = nullptr) const;
  // Reads one object with the columns and returns a frame of one row, or nullptr if it is left to the slow path.
  std::shared_ptr<Frame> row(std::string_view object, std::string* why = nullptr) const;

  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<std::string>& ignored() const { return ignored_; }
  int64_t most() const { return most_; }

 private:
  struct Reading;

  std::vector<Column> columns_;
  std::vector<std::string> ignored_;
  int64_t most_;
};

}  // namespace cb
