// The rows of the settings table, one function per group of keys. schema.cpp joins them in this
// order, which is also the order of help, documentation and saved configurations.
#pragma once

#include <span>

#include "dtrain/config/schema/rows.h"
#include "dtrain/config/schema/schema.h"

// The accessor of a field of Config: FIELD(model.width).
#define FIELD(member) field_of([](auto& config) -> auto& { return config.member; })

namespace dtrain::config::tables {

using namespace conditions;
using namespace rows;

// Upper limits of sizes. Their products (bytes of all parameters, tokens per step) stay below 2^63.
inline constexpr double kMaxLayers = 1 << 10;
inline constexpr double kMaxWidth = 1 << 14;
inline constexpr double kMaxHeads = 1 << 12;
inline constexpr double kMaxVocab = 1LL << 31;
inline constexpr double kMaxPositions = 1 << 16;
inline constexpr double kMaxMicrobatch = 1 << 20;
inline constexpr double kMaxGlobalBatch = 1LL << 40;
inline constexpr double kMaxRanks = 1 << 20;
inline constexpr double kMaxSteps = 1e12;
inline constexpr double kMaxThreads = 1 << 12;

[[nodiscard]] std::span<const Setting> model() noexcept;
[[nodiscard]] std::span<const Setting> data() noexcept;
[[nodiscard]] std::span<const Setting> training() noexcept;
[[nodiscard]] std::span<const Setting> layout() noexcept;
[[nodiscard]] std::span<const Setting> machine() noexcept;
[[nodiscard]] std::span<const Setting> reports() noexcept;
[[nodiscard]] std::span<const Setting> commands() noexcept;

}  // namespace dtrain::config::tables
