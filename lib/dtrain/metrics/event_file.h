// RUN/tensorboard: what metrics.jsonl says, for TensorBoard (docs/guide/views.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/metrics/metrics_file.h"

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

/// The event file of one start of the program, in a folder with those of earlier starts. A start
/// never changes an older file, which TensorBoard may be reading: a record at the beginning of the
/// new one has readers drop what older ones say of its steps.
///
/// Throws:  Error{data} naming the folder if it cannot be made; as AppendedFile.
/// Threads: one caller.
class EventFile {
 public:
  /// The folder is made, and the file begun, by the first event. first_step: of this start.
  EventFile(std::string folder, std::int64_t first_step);

  void scalars(std::int64_t step, std::span<const Scalar> scalars);
  /// Shown as it is, line by line.
  void text(std::int64_t step, std::string_view tag, std::string_view text);

  /// As AppendedFile::finish.
  void finish();

 private:
  void write(const std::string& record);

  std::string folder_;
  std::int64_t first_step_;
  std::unique_ptr<AppendedFile> file_;  // from the first event on
};

/// Removes the event files that dtrain has written to the folder, and the folder if nothing is
/// left. Files of others stay.
///
/// Throws: Error{data} naming a file that cannot be removed.
void remove_event_files(const std::string& folder);

}  // namespace dtrain::metrics
