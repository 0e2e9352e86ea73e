// JSON paths: one pass over a document checks all of it (RFC 8259) and finds every value asked for.
//
// The paths are a trie (built by core/program/operator_tables.h). The scanner walks the document with a stack of trie
// nodes; values off every path are checked and forgotten. It allocates nothing and copies nothing: a value is a slice
// of the document.
//
//   depth          more than 64 levels is malformed
//   same key twice the last wins, also for everything below it
//   strings        control bytes below 0x20 are malformed; bytes that are not UTF-8 are kept; a lone \ud800
//   becomes U+FFFD NaN, Infinity, comments, trailing commas, an empty document: malformed
#pragma once
#include "operators/json_text.h"

namespace cb {

const uint32_t kJsonDepth = 64;
const uint32_t kJsonPaths = 32;  // a set of paths is a 32-bit mask

enum JsonType : uint8_t {
  kJsonMissing,
  kJsonNull,
  kJsonTrue,
  kJsonFalse,
  kJsonNumber,
  kJsonString,
  kJsonArray,
  kJsonObject,
};

struct JsonSlice {
  const char* p;  // of a string: between the quotes
  uint32_t n;
  JsonType type;
  bool escaped;  // a string with a backslash in it
};

// What a path's result is: kinds as in the catalogue, a list in capitals.
enum JsonKind : uint8_t {
  kJsonS = 's',
  kJsonI = 'i',
  kJsonF = 'f',
  kJsonB = 'b',
  kJsonSs = 'S',
  kJsonIs = 'I',
  kJsonFs = 'F'
};

struct JsonEdge {
  uint64_t head;  // the first 8 bytes of the key, zeros behind a shorter one
  uint32_t key_at;
  uint32_t key_n;
  uint32_t index;  // of an edge into an array
  uint32_t to;
};

// Node 0 leads nowhere, node 1 is the root. Edges [first, first + keys) are by key, the next `indexes` by
// array index.
struct JsonNode {
  uint32_t ends;     // paths that end here
  uint32_t under;    // paths that end here or below
  uint32_t lengths;  // bit k: a key of k bytes leads on (31: of 31 or more); most keys of a document fail here
  uint16_t first;
  uint8_t keys;
  uint8_t indexes;
};

struct JsonPathsView {
  const JsonNode* nodes;
  const JsonEdge* edges;
  const char* keys;
  const uint8_t* kinds;  // JsonKind of each path
  uint32_t n;
};

struct JsonScan {
  // slots: one per path; kJsonMissing where the document has no such value. False: malformed, slots mean
  // nothing.
  CB_BODY static bool scan(const JsonPathsView& paths, Str doc, JsonSlice* slots) {
    const JsonPathsView view = paths;  // a copy: writing a slot cannot change it, so it stays in registers
    for (uint32_t k = 0; k < view.n; ++k) slots[k].type = kJsonMissing;
    const char* p = doc.p;
    const char* end = p + doc.n;
    while (p < end && is_blank(*p)) ++p;
    while (p < end && is_blank(end[-1])) --end;
    if (p == end) return false;
    if (*p != '{' && *p != '[') return scan_scalar(view, p, end, slots);
    // The last byte is a bracket or the document is malformed. It stops every loop below: only behind a
    // closing bracket can p have reached the end, and only there it is compared.
    if (end[-1] != '}' && end[-1] != ']') return false;
    StringEnds ends(p, end);
    Level levels[kJsonDepth];  // the open arrays and objects, outermost first
    uint64_t objects = 0;      // lowest bit: the innermost is an object
    uint32_t depth = 0;
    uint32_t within = 0;  // node of the innermost
    uint32_t index = 0;   // in it, where it is an array
    uint32_t node = 1;    // of the value that comes
    uint32_t found = 0;
    const char* start;
    JsonType type;
    bool escaped;

  value:
    start = p;
    if (*p == '"') {
      start = ++p;
      p = ends.stop(p);
      escaped = p == end || *p != '"';
      if (escaped && !(p = end_of_escaped(p, ends.begin, end))) return false;
      if (node) keep(view, node, JsonSlice{start, (uint32_t)(p - start), kJsonString, escaped}, slots, &found);
      ++p;
      goto after;
    }
    if ((uint8_t)*p <= '9') {  // a digit, a minus, or nothing that can start a value
      p = end_of_number(p);
      if (!p) return false;
      if (node) keep(view, node, JsonSlice{start, (uint32_t)(p - start), kJsonNumber, false}, slots, &found);
      goto after;
    }
    switch (*p) {
      case '{':
        if (depth == kJsonDepth) return false;
        levels[depth++] = Level{p, within, index};
        within = node;
        objects = objects << 1 | 1;
        p = skip_blank(p + 1);
        if (*p != '}') goto key;
        ++p;
        goto close;
      case '[':
        if (depth == kJsonDepth) return false;
        levels[depth++] = Level{p, within, index};
        within = node;
        objects = objects << 1;
        p = skip_blank(p + 1);
        if (*p != ']') {
          index = 0;
          node = within ? child_at(view, within, 0) : 0;
          goto value;
        }
        ++p;
        goto close;
      case 't':
        if (end - p < 4 || load32(p) != 0x65757274u) return false;
        p += 4;
        type = kJsonTrue;
        break;
      case 'f':
        if (end - p < 5 || load32(p + 1) != 0x65736c61u) return false;
        p += 5;
        type = kJsonFalse;
        break;
      case 'n':
        if (end - p < 4 || load32(p) != 0x6c6c756eu) return false;
        p += 4;
        type = kJsonNull;
        break;
      default:
        return false;
    }
    if (node) keep(view, node, JsonSlice{start, (uint32_t)(p - start), type, false}, slots, &found);

  after:
    if (*p != ',') {
      p = skip_blank(p);
      if (*p != ',') {
        if (*p++ != (objects & 1 ? '}' : ']')) return false;
        goto close;
      }
    }
    p = skip_blank(p + 1);
    if (objects & 1) goto key;
    node = within ? child_at(view, within, ++index) : 0;
    goto value;

  close:
    --depth;
    if (within) {
      type = objects & 1 ? kJsonObject : kJsonArray;
      keep(view, within, JsonSlice{levels[depth].start, (uint32_t)(p - levels[depth].start), type, false}, slots,
           &found);
    }
    if (depth == 0) return p == end;
    if (p == end) return false;
    within = levels[depth].outer_node;
    index = levels[depth].outer_index;
    objects >>= 1;
    goto after;

  key:
    if (*p != '"') return false;
    start = ++p;
    p = ends.stop(p);
    escaped = p == end || *p != '"';
    if (escaped && !(p = end_of_escaped(p, ends.begin, end))) return false;
    node = within;
    if (node) {
      node = child_of(view, node, start, p, ends, escaped);
      if (uint32_t again = node ? found & view.nodes[node].under : 0) {
        found &= ~again;
        for (uint32_t k = 0; k < view.n; ++k)
          if (again >> k & 1) slots[k].type = kJsonMissing;
      }
    }
    if (*++p != ':') {
      p = skip_blank(p);
      if (*p != ':') return false;
    }
    p = skip_blank(p + 1);
    goto value;
  }

 private:
  struct Level {
    const char* start;
    uint32_t outer_node;
    uint32_t outer_index;
  };

  // A document that is neither array nor object.
  CB_COLD static bool scan_scalar(const JsonPathsView& view, const char* p, const char* end, JsonSlice* slots) {
    JsonSlice v = {p, (uint32_t)(end - p), kJsonNumber, false};
    if (*p == '"') {
      const char* last = end_of_string(p + 1, p, end, &v.escaped);
      if (last != end - 1) return false;
      v = JsonSlice{p + 1, v.n - 2, kJsonString, v.escaped};
    } else if (v.n == 4 && load32(p) == 0x65757274u) {
      v.type = kJsonTrue;
    } else if (v.n == 5 && *p == 'f' && load32(p + 1) == 0x65736c61u) {
      v.type = kJsonFalse;
    } else if (v.n == 4 && load32(p) == 0x6c6c756eu) {
      v.type = kJsonNull;
    } else if (!is_whole_number(p, end)) {
      return false;
    }
    uint32_t found = 0;
    keep(view, 1, v, slots, &found);
    return true;
  }

  // end_of_number() for text with nothing behind it; the last byte must be a digit, so a byte follows '.',
  // 'e' and signs.
  CB_BODY static bool is_whole_number(const char* p, const char* end) {
    if (!is_digit(end[-1])) return false;
    if (*p == '-') ++p;
    if (*p == '0' && p + 1 < end && is_digit(p[1])) return false;
    if (!is_digit(*p)) return false;
    while (p < end && is_digit(*p)) ++p;
    if (p < end && *p == '.') {
      if (!is_digit(*++p)) return false;
      while (p < end && is_digit(*p)) ++p;
    }
    if (p < end && (*p | 0x20) == 'e') {
      ++p;
      if (*p == '+' || *p == '-') ++p;
      while (p < end && is_digit(*p)) ++p;
    }
    return p == end;
  }

  CB_BODY static void keep(const JsonPathsView& view, uint32_t node, const JsonSlice& v, JsonSlice* slots,
                           uint32_t* found) {
    uint32_t ends = view.nodes[node].ends;
    *found |= ends;
    for (uint32_t k = 0; ends; ++k, ends >>= 1)
      if (ends & 1) slots[k] = v;
  }

  CB_BODY static uint32_t child_at(const JsonPathsView& view, uint32_t node, uint32_t index) {
    const JsonNode& from = view.nodes[node];
    const JsonEdge* edge = view.edges + from.first + from.keys;
    for (uint32_t k = 0; k < from.indexes; ++k)
      if (edge[k].index == index) return edge[k].to;
    return 0;
  }

  CB_BODY static uint32_t child_of(const JsonPathsView& view, uint32_t node, const char* key, const char* key_end,
                                   const StringEnds& ends, bool escaped) {
    const JsonNode& from = view.nodes[node];
    uint32_t n = (uint32_t)(key_end - key);
    if (!escaped && !(from.lengths >> (n < 31 ? n : 31) & 1)) return 0;
    const JsonEdge* edge = view.edges + from.first;
    const JsonEdge* last = edge + from.keys;
    if (escaped) return child_of_escaped(view, edge, last, key, key_end);
    uint64_t head = word_before(key, ends.begin, ends.end);
    if (n < 8) head &= (1ull << (8 * n)) - 1;
    for (; edge < last; ++edge)
      if (edge->head == head && edge->key_n == n &&
          (n <= 8 || same(Str{view.keys + edge->key_at + 8, n - 8}, Str{key + 8, n - 8})))
        return edge->to;
    return 0;
  }

  CB_COLD static uint32_t child_of_escaped(const JsonPathsView& view, const JsonEdge* edge, const JsonEdge* last,
                                           const char* key, const char* key_end) {
    for (; edge < last; ++edge)
      if (same_unescaped(key, key_end, Str{view.keys + edge->key_at, edge->key_n})) return edge->to;
    return 0;
  }
};

// ---- from a slice to a value ------------------------------------------------------------------------------------

// Any number; beyond the range of doubles ±inf.
CB_BODY bool json_float(const JsonSlice& v, double* out) {
  if (v.type != kJsonNumber) return false;
  Decimal d;
  if (!read_decimal(Str{v.p, v.n}, &d)) return false;
  *out = decimal_value(d);
  return true;
}

// A whole number that fits: 7, 7.0, 7e3.
CB_BODY bool json_int(const JsonSlice& v, int64_t* out) {
  if (v.type != kJsonNumber) return false;
  Decimal d;
  return read_decimal(Str{v.p, v.n}, &d) && decimal_whole(d, out);
}

CB_BODY bool json_bool(const JsonSlice& v, uint8_t* out) {
  *out = v.type == kJsonTrue;
  return v.type == kJsonTrue || v.type == kJsonFalse;
}

// A string without escapes and the text of any other value are views of the document. Null: no value.
CB_BODY bool json_has_text(const JsonSlice& v) { return v.type > kJsonNull; }

// For an escaped string: at most v.n bytes are written.
CB_BODY uint32_t json_unescape(const JsonSlice& v, char* out) {
  const char* p = v.p;
  const char* end = p + v.n;
  uint32_t n = 0;
  while (p < end) n += unescape_one(&p, end, out + n);
  return n;
}

// The elements of an array that scan() has checked. *p starts behind the bracket; false: no more.
CB_BODY bool json_next(const char** at, const char* end, JsonSlice* item) {
  const char* begin = *at;
  const char* p = skip_blank(begin);
  if (*p == ',') p = skip_blank(p + 1);
  if (*p == ']') return false;
  *item = JsonSlice{p, 0, kJsonNumber, false};
  if (*p == '"') {
    item->p = ++p;
    p = end_of_string(p, begin, end, &item->escaped);
    item->type = kJsonString;
    item->n = (uint32_t)(p - item->p);
    *at = p + 1;
    return true;
  }
  switch (*p) {
    case 't':
      item->type = kJsonTrue;
      p += 4;
      break;
    case 'f':
      item->type = kJsonFalse;
      p += 5;
      break;
    case 'n':
      item->type = kJsonNull;
      p += 4;
      break;
    case '[':
    case '{': {
      item->type = *p == '[' ? kJsonArray : kJsonObject;
      uint32_t depth = 0;
      do {
        bool ignored;
        if (*p == '"')
          p = end_of_string(p + 1, begin, end, &ignored);
        else if (*p == '[' || *p == '{')
          ++depth;
        else if (*p == ']' || *p == '}')
          --depth;
        ++p;
      } while (depth);
      break;
    }
    default:
      p = end_of_number(p);
  }
  item->n = (uint32_t)(p - item->p);
  *at = p;
  return true;
}

}  // namespace cb
