// Runs the body of a function of the C interface: an exception becomes a status and a sentence, so that none leaves it.
#pragma once
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "capi/ctrbox.h"
#include "capi/patch_file.h"
#include "capi/whole_file.h"
#include "core/ffm/model_file.h"
#include "core/request/request_scorer.h"
#include "core/system/checked_file.h"

struct ctrbox_model {
  std::unique_ptr<cb::DeepFfm> model;
  cb::FfmHead head;
  std::vector<uint64_t> salts;  // hashes of the fields' names
};

namespace cb {

struct BadArgument : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct NotFinite : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Keeps the sentence for ctrbox_last_error() of this thread.
ctrbox_status failed(ctrbox_status status, const char* why) noexcept;

template <class F>
ctrbox_status guarded(F f) noexcept {
  try {
    f();
    return CTRBOX_OK;
  } catch (const BadArgument& e) {
    return failed(CTRBOX_BAD_ARGUMENT, e.what());
  } catch (const BadRequest& e) {
    return failed(CTRBOX_BAD_ARGUMENT, e.what());
  } catch (const CannotRead& e) {
    return failed(CTRBOX_CANNOT_READ, e.what());
  } catch (const CannotWrite& e) {
    return failed(CTRBOX_CANNOT_WRITE, e.what());
  } catch (const DamagedFile& e) {
    return failed(CTRBOX_DAMAGED, e.what());
  } catch (const BadPatch& e) {
    return failed(CTRBOX_DAMAGED, e.what());
  } catch (const WrongBase& e) {
    return failed(CTRBOX_WRONG_BASE, e.what());
  } catch (const TooLarge& e) {
    return failed(CTRBOX_TOO_LARGE, e.what());
  } catch (const NotFinite& e) {
    return failed(CTRBOX_NOT_FINITE, e.what());
  } catch (const BadScore& e) {
    return failed(CTRBOX_NOT_FINITE, e.what());
  } catch (const NoZstd& e) {
    return failed(CTRBOX_UNSUPPORTED, e.what());
  } catch (const std::bad_alloc&) {
    return failed(CTRBOX_TOO_LARGE, "no memory");
  } catch (const std::length_error&) {
    return failed(CTRBOX_TOO_LARGE, "no memory");
  } catch (const std::exception& e) {
    return failed(CTRBOX_FAILED, e.what());
  } catch (...) {
    return failed(CTRBOX_FAILED, "an error of no known kind");
  }
}

inline void need(const void* p, const char* name) {
  if (!p) throw BadArgument(std::string(name) + " is NULL");
}

// Reads a file; CannotRead and DamagedFile name it.
template <class F>
auto reading(const std::string& path, F read) {
  try {
    return read();
  } catch (const CannotRead& e) {
    throw CannotRead("cannot read " + path + ": " + e.what());
  } catch (const DamagedFile& e) {
    throw DamagedFile("cannot read " + path + ": " + e.what());
  } catch (const std::system_error& e) {
    throw CannotRead("cannot read " + path + ": " + e.code().message());
  }
}

std::unique_ptr<ctrbox_model> opened_model(const std::string& path);

}  // namespace cb
