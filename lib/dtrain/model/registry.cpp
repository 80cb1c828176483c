#include "dtrain/model/registry.h"

#include "dtrain/base/error.h"
#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/bdh/bdh_partition.h"

namespace dtrain::model {
namespace {

void check_name(const std::string& name) {
  if (name == "bdh") return;
  base::fail(base::ErrorKind::usage, "--model: '{}' is not known; known: bdh", name);
}

}  // namespace

std::unique_ptr<Model> make_model(const config::ModelConfig& config, std::int64_t seq_len,
                                  const TensorPlace& place) {
  check_name(config.name);
  return bdh::make_bdh(bdh::sizes_of(config), seq_len, place);
}

std::vector<mesh::Subgroup> tensor_subgroups(const config::ModelConfig& config, std::int64_t tp) {
  check_name(config.name);
  return bdh::tensor_subgroups(bdh::sizes_of(config), tp);
}

}  // namespace dtrain::model
