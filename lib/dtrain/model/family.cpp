#include "dtrain/model/family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dtrain/base/error.h"
#include "dtrain/config/family.h"

namespace dtrain::model {

#define FAMILY(name)      \
  namespace name {        \
  const Family& family(); \
  }
#include "dtrain/config/families.inc"
#undef FAMILY

namespace {

struct Named {
  std::string_view name;
  const Family& family;
};

std::vector<Named> families() {
#define FAMILY(each) {config::each::family().name, each::family()},
  return {
#include "dtrain/config/families.inc"
  };
#undef FAMILY
}

}  // namespace

const Family& family_of(const config::ModelConfig& config) {
  for (const Named& each : families()) {
    if (each.name == config.name) return each.family;
  }
  base::fail(base::ErrorKind::internal, "no model family '{}'", config.name);
}

std::unique_ptr<Model> make_model(const config::ModelConfig& config, std::int64_t seq_len,
                                  const TensorCoordinate& place,
                                  const ComputeOptions& computation) {
  return model::family_of(config).make(config, seq_len, place, computation);
}

std::vector<mesh::Subgroup> tensor_subgroups(const config::ModelConfig& config, std::int64_t tp) {
  return model::family_of(config).tensor_subgroups(config, tp);
}

std::string_view recognised_family(const TensorShapes& tensors) {
  for (const Named& each : families()) {
    if (each.family.recognises(tensors)) return each.name;
  }
  return {};
}

config::ModelConfig recognise(const TensorShapes& tensors, const UserHints& hints) {
  std::vector<std::string_view> names;
  for (const Named& each : families()) {
    names.push_back(each.name);
    if (!each.family.recognises(tensors)) continue;
    config::ModelConfig found = each.family.read_sizes(tensors, hints);
    found.name = each.name;
    if (found.layers == 0)
      tensors.fail_unspecified("layers", fmt::format("{} L", hints.layers_flag));
    return found;
  }
  if (tensors.shapes.empty()) {
    base::fail(base::ErrorKind::checkpoint,
               "model file '{}' holds no tensors{}; give weights of a known family ({})",
               tensors.path, tensors.prefix.empty() ? "" : " under " + tensors.prefix,
               fmt::join(names, ", "));
  }
  const std::string first = tensors.shapes.begin()->first;
  base::fail(base::ErrorKind::checkpoint,
             "model file '{}' has no model of a known family ({}): its first tensor is '{}{}'; "
             "give a file of one of these families",
             tensors.path, fmt::join(names, ", "), tensors.prefix, first);
}

std::int64_t TensorShapes::size(std::string_view name, std::size_t rank, std::size_t dim) const {
  const auto found = shapes.find(name);
  if (found == shapes.end()) {
    base::fail(base::ErrorKind::checkpoint,
               "model file '{}' lacks tensor '{}{}'; give a complete file of this model", path,
               prefix, name);
  }
  if (found->second.size() != rank) {
    base::fail(base::ErrorKind::checkpoint,
               "model file '{}': tensor '{}{}' has {} dims, but {} are expected; give a file of "
               "this model",
               path, prefix, name, found->second.size(), rank);
  }
  return found->second[dim];
}

void TensorShapes::fail_unspecified(std::string_view what, std::string_view advice) const {
  base::fail(base::ErrorKind::checkpoint,
             "model file '{}' does not specify how many {} its model has; give {}", path, what,
             advice);
}

void check_flag_agrees(std::string_view path, std::string_view flag, std::int64_t flag_value,
                       std::int64_t file_value) {
  if (flag_value == 0 || flag_value == file_value) return;
  base::fail(base::ErrorKind::usage, "{} {}: the model in '{}' has {}; leave the flag out", flag,
             flag_value, path, file_value);
}

}  // namespace dtrain::model
