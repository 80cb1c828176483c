// Records of TensorBoard's event files, as bytes (docs/views.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dtrain::metrics {

/// A point of a curve.
struct Scalar {
  std::string_view tag;  ///< the curve's name; what stands before its first / groups curves
  double value = 0;      ///< written as float32, which is what TensorBoard keeps
};

/// A moment of a run.
struct EventTime {
  double wall_seconds = 0;  ///< since 1970, UTC
  std::int64_t step = 0;
};

/// The record that a file begins with.
[[nodiscard]] std::string version_record(double wall_seconds);

/// Says that a start of the program follows whose first step is `at.step`: readers drop what
/// earlier files say of this step and later ones.
[[nodiscard]] std::string start_record(const EventTime& at);

[[nodiscard]] std::string scalars_record(const EventTime& at, std::span<const Scalar> scalars);

/// A text, which TensorBoard shows as Markdown.
[[nodiscard]] std::string text_record(const EventTime& at, std::string_view tag,
                                      std::string_view text);

/// CRC-32C (Castagnoli).
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

}  // namespace dtrain::metrics
