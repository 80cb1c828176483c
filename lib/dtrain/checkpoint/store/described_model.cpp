#include "dtrain/checkpoint/store/described_model.h"

#include <fmt/format.h>

#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/config/family.h"
#include "dtrain/config/hugging_face/config_file.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::checkpoint::store {

std::optional<config::ModelConfig> described_model(const format::WeightFile& file) {
  const auto found = file.metadata().find(kModelKey);
  if (found == file.metadata().end()) {
    return config::hugging_face_model_in(base::parent_folder(file.path()));
  }
  try {
    config::ModelConfig model =
        config::from_json(fmt::format(R"({{"model": {}}})", found->second)).model;
    config::family_of(model).check(model);
    return model;
  } catch (const base::Error& error) {
    base::fail(base::ErrorKind::checkpoint, "model file '{}': bad metadata '{}': {}", file.path(),
               kModelKey, error.what());
  }
}

}  // namespace dtrain::checkpoint::store
