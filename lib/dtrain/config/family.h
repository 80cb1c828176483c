// A model family's part of the configuration. Its other part is model/family.h.
#pragma once

#include <any>
#include <span>
#include <string_view>

#include "dtrain/config/foreign_names.h"
#include "dtrain/config/schema.h"

// The list of families; a build of the tests has another.
#ifndef DTRAIN_FAMILIES
#define DTRAIN_FAMILIES "dtrain/config/families.inc"
#endif

namespace dtrain::config {

struct Family {
  std::string_view name;  ///< of --model
  /// Rows of the table (rows.h). Those of the group "model" have an effect with --model NAME alone.
  std::span<const Setting> settings;
  std::span<const ForeignName> foreign_names = {};
  /// The struct that OwnSettings holds for this family, with default values.
  std::any (*defaults)();
  /// Throws: Error{usage} naming settings that contradict each other.
  void (*check)(const ModelConfig& model);
  bool has_fused_kernels = false;  ///< for the CPU (--kernels)
  /// What --attention auto is for sequences of these many positions; 0: full. Of fused kernels.
  std::int64_t (*cheapest_chunk)(const ModelConfig& model, std::int64_t seq_len) = nullptr;
};

#define FAMILY(name)      \
  namespace name {        \
  const Family& family(); \
  }
#include DTRAIN_FAMILIES
#undef FAMILY

/// Every family of this build (families.inc).
[[nodiscard]] std::span<const Family* const> families() noexcept;

/// Their names: the values of --model.
[[nodiscard]] std::span<const Choice> family_names() noexcept;

/// The family that model.name names.
[[nodiscard]] const Family& family_of(const ModelConfig& model);

}  // namespace dtrain::config
