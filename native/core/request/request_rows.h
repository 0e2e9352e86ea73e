// Parses the candidates of a request, or its context, from the bytes of its JSON directly into a frame.
//
//   {"context": {…}, "candidates": [{"ad_id": 1, …}, …]}      or  "candidates": {"ad_id": [1, …], …}
//
// The fast half of ctrbox/serve/request.py: what it takes it reads as that one does, and whatever else it meets
// (another type, a missing column, bytes that are not UTF-8) it leaves to it, also what is wrong: messages are
// made there. `read` finds only the place of the context; a second reader, whose columns are the context's, reads it by
// `row` when no cache has it. Nothing is believed of the bytes; sizes grow with what was read.
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
    int64_t unit = 0;           // of kind t: microseconds that a number counts; 0: text alone is a time
  };
  struct Read {
    size_t context_begin = 0, context_end = 0;  // the object's braces included; equal: there is none
    int64_t rows = 0;
    std::shared_ptr<Frame> frame;
  };

  // ignored: columns of the log that may come and are not read. most: rows beyond which a request is left to others.
  RequestRows(std::vector<Column> columns, std::vector<std::string> ignored, int64_t most);

  std::optional<Read> read(std::string_view body) const;
  // One object with the columns as a frame of one row; nothing where it is left to the slow way.
  std::shared_ptr<Frame> row(std::string_view object) const;

 private:
  struct Reading;

  std::vector<Column> columns_;
  std::vector<std::string> ignored_;
  int64_t most_;
};

}  // namespace cb
