// Reads the published weights of a Deep FFM without Python (docs/how_it_works/codes_and_patches.md; Python twin:
// publish/weight_file.py).
//
// DamagedFile or CannotRead; nothing is believed before it fits the file's size, no part before its checksum fits.
#pragma once
#include <memory>
#include <string>

#include "core/ffm/model_file.h"

namespace cb {

bool is_weight_file(const std::string& path);
std::unique_ptr<DeepFfm> load_weights(const std::string& path, FfmHead& head);

}  // namespace cb
