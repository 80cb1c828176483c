// A model family's part of the configuration. Its other part is model/family.h.
#pragma once

#include <any>
#include <cstdint>
#include <span>
#include <string_view>

#include "dtrain/config/config.h"
#include "dtrain/config/resolve/advice.h"
#include "dtrain/config/schema/schema.h"

// The list of families; a build of the tests has another.
#ifndef DTRAIN_FAMILIES
#define DTRAIN_FAMILIES "dtrain/config/families.inc"
#endif

namespace dtrain::config {

/// FLOP/s and memory bandwidth of a device, by which --attention auto chooses. Only their ratios
/// decide.
struct DeviceRates {
  double products = 0;       ///< FLOP/s of matrix products of the dtype that is computed with
  double wide_products = 0;  ///< of those that float16 leaves to float32
  double bytes = 0;          ///< that its memory moves
};

/// An H100's rates for the machine's dtype. They are given, not measured, and the same for every
/// device: so all ranks choose alike, and a run that resumes on another GPU as before. The ratios of
/// other GPUs are within a factor of two, which moves the time of the choice by a few percent.
[[nodiscard]] DeviceRates device_rates(const MachineConfig& machine);

/// The input of --attention auto.
struct AttentionWork {
  std::int64_t seq_len = 0;
  /// Of the device; null: fused kernels on a CPU, where the state stays in the cache.
  const DeviceRates* rates = nullptr;
  /// Bytes of a value that is computed with.
  std::int64_t value_bytes = 4;
};

struct Family {
  std::string_view name;  ///< of --model
  /// Rows of the table (rows.h). Those of the group "model" have an effect with --model NAME alone.
  std::span<const Setting> settings;
  std::span<const ForeignNames> foreign_names = {};
  /// The struct that OwnSettings holds for this family, with default values.
  std::any (*defaults)();
  /// Throws: Error{usage} naming settings that contradict each other.
  void (*check)(const ModelConfig& model);
  bool has_fused_kernels = false;  ///< for the CPU (--kernels)
  /// The chunk of --attention auto (positions), 0: full. Null: the family has no such attention.
  std::int64_t (*attention)(const ModelConfig& model, const AttentionWork& work) = nullptr;
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
