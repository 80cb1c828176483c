#include "dtrain/model/registry.h"

#include "dtrain/base/error.h"
#include "dtrain/model/bdh/bdh.h"

namespace dtrain::model {

std::unique_ptr<Model> make_model(const config::ModelConfig& config, std::int64_t seq_len) {
  if (config.name == "bdh") return bdh::make_bdh(bdh::sizes_of(config), seq_len);
  base::fail(base::ErrorKind::usage, "--model: '{}' is not known; known: bdh", config.name);
}

}  // namespace dtrain::model
