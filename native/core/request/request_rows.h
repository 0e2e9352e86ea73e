// Parses the candidates of a request from the bytes of its JSON directly into a frame.
//
//   {"context": {…}, "candidates": [{"ad_id": 1, …}, …]}      or  "candidates": {"ad_id": [1, …], …}
//
// The fast half of ctrbox/serve/request.py: what it takes it reads as that one does, and whatever else it meets (an
// escape, another type, a missing column, text beyond ASCII) it leaves to it, also what is wrong: messages are made
// there. Of the context only the place is found. Nothing is believed of the bytes; sizes grow with what was read.
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
    char kind;                  // b i f s
    int64_t low = 0, high = 0;  // of kind i
    bool single = false;        // of kind f: the log holds float32
  };
  struct Read {
    size_t context_begin = 0, context_end = 0;  // the object's braces included; equal: there is none
    int64_t rows = 0;
    std::shared_ptr<Frame> frame;
  };

  // ignored: columns of the log that may come and are not read. most: rows beyond which a request is left to others.
  RequestRows(std::vector<Column> columns, std::vector<std::string> ignored, int64_t most);

  std::optional<Read> read(std::string_view body) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::string> ignored_;
  int64_t most_;
};

}  // namespace cb
