// Literals for ids (3_p is parameter 3, 1_u is unit 1, 0_s is shard 0); parameter specs with given
// sizes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "dtrain/param/arena.h"
#include "dtrain/param/parameter_spec.h"

namespace dtrain::testing {

consteval param::ParameterId operator""_p(unsigned long long value) {
  return param::ParameterId(static_cast<std::int64_t>(value));
}
consteval param::UnitId operator""_u(unsigned long long value) {
  return param::UnitId(static_cast<std::int64_t>(value));
}
consteval param::ShardId operator""_s(unsigned long long value) {
  return param::ShardId(static_cast<std::int64_t>(value));
}

/// A parameter of two dims, exported in its storage shape.
inline param::ParameterSpec matrix(std::string name, std::int64_t rows, std::int64_t columns) {
  return {.name = std::move(name),
          .shape = {rows, columns},
          .export_view = {rows, columns},
          .export_order = {0, 1}};
}

/// A parameter of one dim.
inline param::ParameterSpec spec(std::string name, std::int64_t count, bool decay = true) {
  return {.name = std::move(name),
          .shape = {count},
          .export_view = {count},
          .export_order = {0},
          .decay = decay};
}

}  // namespace dtrain::testing
