#include "dtrain/config/family.h"

#include <algorithm>
#include <vector>

#include "dtrain/base/check.h"

namespace dtrain::config {

std::span<const Family* const> families() noexcept {
#define FAMILY(name) &name::family(),
  static const Family* const kFamilies[] = {
#include DTRAIN_FAMILIES
  };
#undef FAMILY
  return kFamilies;
}

std::span<const Choice> family_names() noexcept {
  static const std::vector<Choice> names = [] {
    std::vector<Choice> all;
    for (const Family* family : families()) all.emplace_back(family->name, 0);
    return all;
  }();
  return names;
}

const Family& family_of(const ModelConfig& model) {
  const auto found = std::ranges::find(families(), model.name, &Family::name);
  DTRAIN_CHECK(found != families().end(), "{}", model.name);
  return **found;
}

OwnSettings::OwnSettings() {
  for (const Family* family : families()) structs_.push_back(family->defaults());
}

}  // namespace dtrain::config
