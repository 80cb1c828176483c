// Makes parameter specs for tests that care about sizes alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "dtrain/param/parameter_spec.h"

namespace dtrain::testing {

/// A parameter of one dim.
inline param::ParameterSpec spec(std::string name, std::int64_t count, bool decay = true) {
  return {.name = std::move(name),
          .shape = {count},
          .export_view = {count},
          .export_order = {0},
          .decay = decay};
}

}  // namespace dtrain::testing
