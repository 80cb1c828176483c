#include "dtrain/model/family.h"

#include "dtrain/base/error.h"

namespace dtrain::model {

using base::ErrorKind;
using base::fail;

std::int64_t TensorShapes::size(std::string_view name, std::size_t rank, std::size_t dim) const {
  const auto found = shapes.find(name);
  if (found == shapes.end()) {
    fail(ErrorKind::checkpoint, "model file '{}' has no tensor '{}{}'; give a file of this model",
         path, prefix, name);
  }
  if (found->second.size() != rank) {
    fail(ErrorKind::checkpoint, "model file '{}': tensor '{}{}' has {} dims, its model's has {}",
         path, prefix, name, found->second.size(), rank);
  }
  return found->second[dim];
}

void TensorShapes::refuse_silent(std::string_view what, std::string_view advice) const {
  fail(ErrorKind::checkpoint, "model file '{}' does not say how many {} its model has; give {}",
       path, what, advice);
}

void check_told(std::string_view path, std::string_view flag, std::int64_t told,
                std::int64_t found) {
  if (told == 0 || told == found) return;
  fail(ErrorKind::usage, "{} {}: the model of '{}' has {}; leave the flag out", flag, told, path,
       found);
}

}  // namespace dtrain::model
