// The C interface: hostile calls give a status and a sentence; scores have the bits of predict; threads share a model.
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "capi/ctrbox.h"
#include "capi/sha256.h"
#include "capi/whole_file.h"
#include "core/ffm/model_file.h"
#include "tests/check.h"

using namespace cb;

namespace {

const std::string kPath = "test_capi." + std::to_string(getpid()) + ".tmp";

struct Saved {
  DeepFfm model;
  ctrbox_model* handle = nullptr;
  explicit Saved(const FfmSettings& s) : model(s) {
    for (size_t i = 0; i < model.layout().dense; ++i) model.dense()[i] += 0.01f;  // the network says something too
    model.changed();
    save_ffm(kPath, model, FfmHead{s, {"user", "ad", "words"}, 7});
    CHECK(ctrbox_open(kPath.c_str(), &handle) == CTRBOX_OK && handle);
  }
  ~Saved() { ctrbox_close(handle); }
};

FfmSettings some_settings() {
  FfmSettings s;
  s.fields = 3;
  s.bits = 10;
  s.hidden = {4, 3};  // GCC 13 warns, wrongly, of a copy of just one
  return s;
}

bool refused(ctrbox_status met, ctrbox_status expected) {
  if (met != expected || *ctrbox_last_error() == 0) std::fprintf(stderr, "status %d: %s\n", met, ctrbox_last_error());
  return met == expected && *ctrbox_last_error() != 0;
}

// Features out of order, several of a field, a field without one, an example without any.
struct Some {
  std::vector<uint64_t> offsets{0, 4, 4, 6}, keys;
  std::vector<uint32_t> fields{2, 0, 2, 1, 1, 0};
  std::vector<float> values{0.5f, 1.0f, -2.0f, 1.0f, 0.0f, 3.0f};
  ctrbox_examples examples{};
  explicit Some(const ctrbox_model* model) {
    for (size_t i = 0; i < fields.size(); ++i) {
      uint64_t key = 0;
      const std::string name = "n" + std::to_string(i);
      CHECK(ctrbox_key_of_text(model, fields[i], name.data(), name.size(), &key) == CTRBOX_OK);
      keys.push_back(key);
    }
    examples = {3, offsets.data(), fields.data(), keys.data(), values.data()};
  }
};

void scores_have_the_bits_of_predict() {
  Saved saved(some_settings());
  const Some some(saved.handle);
  Examples expected;
  for (size_t e = 0; e < 3; ++e) {
    for (size_t i = some.offsets[e]; i < some.offsets[e + 1]; ++i) {
      const std::string name = "n" + std::to_string(i),
                        field = saved.handle ? ctrbox_field_name(saved.handle, some.fields[i], nullptr) : "";
      const uint64_t salt = hash_bytes(field.data(), static_cast<uint32_t>(field.size()));
      expected.add(feature_key(hash_bytes(name.data(), static_cast<uint32_t>(name.size())), salt),
                   static_cast<uint16_t>(some.fields[i]), some.values[i]);
    }
    expected.close(1.0f, 1.0f);
  }
  float wanted[3], met[3];
  saved.model.predict(expected, wanted, 1);
  CHECK(ctrbox_score(saved.handle, &some.examples, met) == CTRBOX_OK);
  CHECK(std::memcmp(wanted, met, sizeof met) == 0);
  CHECK(met[0] != met[2]);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int n = 0; n < 50; ++n) {
        float mine[3];
        CHECK(ctrbox_score(saved.handle, &some.examples, mine) == CTRBOX_OK);
        CHECK(std::memcmp(wanted, mine, sizeof mine) == 0);
        CHECK(refused(ctrbox_score(saved.handle, nullptr, mine), CTRBOX_BAD_ARGUMENT));
      }
    });
  for (auto& t : threads) t.join();
}

void a_model_says_what_it_has() {
  Saved saved(some_settings());
  CHECK(ctrbox_fields(saved.handle) == 3 && ctrbox_learned(saved.handle) == 7);
  size_t bytes = 0;
  CHECK(std::string(ctrbox_field_name(saved.handle, 2, &bytes)) == "words" && bytes == 5);
  CHECK(ctrbox_field_name(saved.handle, 3, nullptr) == nullptr);
  uint32_t field = 9;
  CHECK(ctrbox_field(saved.handle, "ad", 2, &field) == CTRBOX_OK && field == 1);
  CHECK(refused(ctrbox_field(saved.handle, "add", 3, &field), CTRBOX_BAD_ARGUMENT));
  CHECK(ctrbox_abi() == CTRBOX_ABI && std::string(ctrbox_version()) == CTRBOX_VERSION);
}

void a_context_has_the_bits_of_whole_examples() {
  FfmSettings s = some_settings();
  s.context = 1;
  Saved saved(s), other(s);
  CHECK(ctrbox_context_fields(saved.handle) == 1 && ctrbox_context_fields(nullptr) == 0);
  uint64_t keys[5];
  for (uint64_t i = 0; i < 5; ++i)
    CHECK(ctrbox_key_of_int(saved.handle, i == 0 ? 0 : 1 + i % 2, 7, &keys[i]) == CTRBOX_OK);
  const uint64_t once[] = {0, 1}, offsets[] = {0, 2, 3}, whole_offsets[] = {0, 3, 5};
  const uint32_t user[] = {0}, fields[] = {1, 2, 1}, whole_fields[] = {0, 1, 2, 0, 1};
  const uint64_t part_keys[] = {keys[1], keys[2], keys[3]};
  const uint64_t whole_keys[] = {keys[0], keys[1], keys[2], keys[0], keys[3]};
  const ctrbox_examples context_part = {1, once, user, keys, nullptr};
  const ctrbox_examples candidates = {2, offsets, fields, part_keys, nullptr};
  const ctrbox_examples whole = {2, whole_offsets, whole_fields, whole_keys, nullptr};
  float expected[2], met[2];
  ctrbox_context* context = nullptr;
  CHECK(ctrbox_score(saved.handle, &whole, expected) == CTRBOX_OK);
  CHECK(ctrbox_context_make(saved.handle, &context_part, &context) == CTRBOX_OK && context);
  CHECK(ctrbox_context_score(saved.handle, context, &candidates, met) == CTRBOX_OK);
  CHECK(std::memcmp(expected, met, sizeof met) == 0);
  CHECK(ctrbox_context_bytes(context) > 0 && ctrbox_context_bytes(nullptr) == 0);
  CHECK(refused(ctrbox_context_score(other.handle, context, &candidates, met), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_context_score(saved.handle, nullptr, &candidates, met), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_context_score(saved.handle, context, nullptr, met), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_context_score(saved.handle, context, &whole, met), CTRBOX_BAD_ARGUMENT));
  ctrbox_context* none = context;
  CHECK(refused(ctrbox_context_make(saved.handle, &candidates, &none), CTRBOX_BAD_ARGUMENT) && !none);
  CHECK(refused(ctrbox_context_make(saved.handle, &context_part, nullptr), CTRBOX_BAD_ARGUMENT));
  ctrbox_context_free(context);
  ctrbox_context_free(nullptr);
}

void null_and_wrong_sizes_are_refused() {
  Saved saved(some_settings());
  Some some(saved.handle);
  float out[3];
  uint64_t key;
  uint32_t field;
  ctrbox_model* none = nullptr;
  CHECK(refused(ctrbox_open(nullptr, &none), CTRBOX_BAD_ARGUMENT) && !none);
  CHECK(refused(ctrbox_open(kPath.c_str(), nullptr), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_open("no/such/file", &none), CTRBOX_CANNOT_READ));
  CHECK(refused(ctrbox_open("/", &none), CTRBOX_CANNOT_READ));
  ctrbox_close(nullptr);
  CHECK(ctrbox_fields(nullptr) == 0 && ctrbox_field_name(nullptr, 0, nullptr) == nullptr &&
        ctrbox_learned(nullptr) == 0);
  CHECK(refused(ctrbox_field(nullptr, "ad", 2, &field), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_field(saved.handle, nullptr, 2, &field), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_field(saved.handle, "ad", 2, nullptr), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_key_of_text(saved.handle, 3, "x", 1, &key), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_key_of_text(saved.handle, 0, nullptr, 1, &key), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_key_of_text(nullptr, 0, "x", 1, &key), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_key_of_string(saved.handle, 0, "x", 1, nullptr), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_key_of_key(saved.handle, 0, 0, &key), CTRBOX_BAD_ARGUMENT));
  CHECK(ctrbox_key_of_text(saved.handle, 0, nullptr, 0, &key) == CTRBOX_OK);
  CHECK(refused(ctrbox_key_of_interaction(saved.handle, 0, nullptr, 2, &key), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_key_of_interaction(saved.handle, 0, some.keys.data(), 1, &key), CTRBOX_BAD_ARGUMENT));

  CHECK(refused(ctrbox_score(nullptr, &some.examples, out), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_score(saved.handle, &some.examples, nullptr), CTRBOX_BAD_ARGUMENT));
  const ctrbox_examples nothing = {0, nullptr, nullptr, nullptr, nullptr};
  CHECK(ctrbox_score(saved.handle, &nothing, nullptr) == CTRBOX_OK);
  auto with = [&](auto change) {
    ctrbox_examples bad = some.examples;
    change(bad);
    return refused(ctrbox_score(saved.handle, &bad, out), CTRBOX_BAD_ARGUMENT);
  };
  CHECK(with([](ctrbox_examples& e) { e.offsets = nullptr; }));
  CHECK(with([](ctrbox_examples& e) { e.fields = nullptr; }));
  CHECK(with([](ctrbox_examples& e) { e.keys = nullptr; }));
  CHECK(with([](ctrbox_examples& e) { e.rows = std::numeric_limits<size_t>::max(); }));
  const uint64_t late[] = {1, 2}, falling[] = {0, 4, 3}, endless[] = {0, 1u << 20};
  CHECK(with([&](ctrbox_examples& e) { e.rows = 1, e.offsets = late; }));
  CHECK(with([&](ctrbox_examples& e) { e.rows = 2, e.offsets = falling; }));
  CHECK(with([&](ctrbox_examples& e) { e.rows = 1, e.offsets = endless; }));
  some.fields[1] = 3;
  CHECK(with([](ctrbox_examples&) {}));
  some.fields[1] = 0;
  some.values[0] = std::numeric_limits<float>::quiet_NaN();
  CHECK(with([](ctrbox_examples&) {}));
  some.values[0] = some.values[1] = 3e38f;  // their pair is beyond all floats
  CHECK(refused(ctrbox_score(saved.handle, &some.examples, out), CTRBOX_NOT_FINITE));
}

void patches_are_checked() {
  CHECK(refused(ctrbox_apply_patch(nullptr, "a", "b", 0), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_apply_patch("a", nullptr, "b", 0), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_apply_patch("a", "b", nullptr, 0), CTRBOX_BAD_ARGUMENT));
  CHECK(refused(ctrbox_apply_patch("no/such/file", kPath.c_str(), "b", 0), CTRBOX_CANNOT_READ));
  const Saved saved(some_settings());
  CHECK(refused(ctrbox_apply_patch(kPath.c_str(), kPath.c_str(), "b", 0), CTRBOX_DAMAGED));
  CHECK(refused(ctrbox_apply_patch(kPath.c_str(), "/dev/null", "b", 0), CTRBOX_CANNOT_READ));
}

// A limit on the size of files stands for a full disk.
void a_write_that_fails_is_told_and_leaves_nothing() {
  const std::vector<uint8_t> bytes(100'000, 7);
  const std::string path = kPath + "-large";
  rlimit before;
  CHECK(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  CHECK(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  bool told = false;
  try {
    write_aside(path, bytes.data(), bytes.size());
  } catch (const CannotWrite&) {
    told = true;
  }
  CHECK(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(told);
  CHECK(::access(path.c_str(), F_OK) != 0);
  write_aside(path, bytes.data(), bytes.size());
  CHECK(::access(path.c_str(), F_OK) == 0);
  ::unlink(path.c_str());
}

void digests_are_those_of_the_standard() {
  const auto hex = [](const std::string& text) {
    std::string out;
    for (uint8_t byte : Sha256::of(reinterpret_cast<const uint8_t*>(text.data()), text.size())) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", byte);
      out += two;
    }
    return out;
  };
  CHECK(hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

}  // namespace

int main() {
  digests_are_those_of_the_standard();
  a_model_says_what_it_has();
  scores_have_the_bits_of_predict();
  a_context_has_the_bits_of_whole_examples();
  null_and_wrong_sizes_are_refused();
  patches_are_checked();
  a_write_that_fails_is_told_and_leaves_nothing();
  std::remove(kPath.c_str());
  return 0;
}
